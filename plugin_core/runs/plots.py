"""A plot of a run's metrics, drawn with matplotlib."""

from __future__ import annotations

import io
import itertools
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from plugin_core.errors import SpecError
from plugin_core.errors.plain_text import plain
from plugin_core.runs.directory import RunDir
from plugin_core.runs.history import COUNTERS, ROWS
from plugin_core.runs.journal import JournalReader, index_of
from plugin_core.runs.report_frame import COLUMNS, no_metric
from plugin_core.runs.trainings import training_of
from plugin_core.specs.extras import require
from plugin_core.specs.json_values import flat, is_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The most metrics that are drawn unless they are named.
CURVES = 6
#: The most that can be named.
MOST_CURVES = 50
#: Beyond this, matplotlib's own arithmetic overflows.
LARGEST = 1e300
#: The most characters of a label.
LABEL = 60

Points = list[tuple[float, float]]
Counters = dict[str, float]


def plot(run: str, *metrics: str) -> Figure:
    """Draw the metrics so far of a run, given by its path or URI, each in its own diagram (default: the first
    `CURVES`). A curve has about `ROWS` points, without those that were repeated after a kill. A search or a retraining
    is treated as in `history`. Raises SpecError if there is nothing to draw or matplotlib is missing; StorageError."""
    require("plot", run, "matplotlib", "history", where="here")
    if len(metrics) > MOST_CURVES:
        raise SpecError(f"metrics: got {len(metrics)}; expected at most {MOST_CURVES}")
    drawing = Drawing(JournalReader(training_of(RunDir.at(run))), metrics)
    if not drawing.curves:
        raise SpecError(
            f"run: got {run!r}, which has no metric to draw yet; expected at least two reports of the same number"
        )
    return drawing.figure()


class _Curve:
    """The points of one metric, thinned to at most `ROWS` plus the last: (index of the report, its counters, value)."""

    def __init__(self) -> None:
        self.points: list[tuple[int, Counters, float]] = []
        self._last: tuple[int, Counters, float] | None = None
        self._count, self._every = 0, 1

    def add(self, index: int, counters: Counters, value: float) -> None:
        while self.points and self.points[-1][0] >= index:
            self.points.pop()  # repeated
        self._last = (index, counters, value)
        self._count += 1
        if self._count % self._every == 0:
            self.points.append(self._last)
            if len(self.points) > ROWS:
                self._every *= 2
                self.points = self.points[1::2]

    def until(self, index: int, counter: str | None) -> Points:
        """The points up to this report, over a counter or the index, in order; the last of several at one place."""
        there = [*self.points, *([self._last] if self._last is not None else [])]
        return sorted({counters[counter] if counter else at: value for at, counters, value in there if at <= index}.items())


class Drawing:
    """The curves in a journal's entries: those of the metrics `wanted` (SpecError if one is missing), or else of the
    first `CURVES`. A curve has at least two points; it is drawn over the first counter that all reports share, or else
    over the index of the report."""

    def __init__(self, entries: Iterable[dict[str, Any]], wanted: Sequence[str] = ()):
        self._wanted = wanted
        self._counters = list(COUNTERS)
        self._index = 0
        self._found: dict[str, _Curve] = {}
        #: the reports whose checkpoint is being validated
        self._validating: dict[str, tuple[int, Counters]] = {}
        for entry in entries:
            self._add(entry)
        self.counter = self._counters[0] if self._counters and self._found else None
        for name in wanted:
            if name not in self._found:
                raise no_metric("metrics", name, list(self._found))
        names = wanted or [name for name in self._found if name not in (*COUNTERS, "progress")]
        drawn = ((name, self._found[name].until(self._index, self.counter)) for name in names)
        some = ((name, points) for name, points in drawn if len(points) > 1)
        self.curves: dict[str, Points] = dict(itertools.islice(some, len(wanted) or CURVES))

    def _add(self, entry: dict[str, Any]) -> None:
        name, metrics = entry.get("checkpoint") or "", entry.get("metrics", {})
        if "report" in entry:
            index = index_of(entry)
            counters = {counter: metrics[counter] for counter in self._counters if _drawable(metrics.get(counter))}
            self._counters = list(counters)
            if not _drawable(index):
                return
            self._index = index
            if "validation" in entry:
                self._validating[name] = (index, counters)
        elif entry.get("phase") == "validated" and name in self._validating:
            index, counters = self._validating.pop(name)
        else:
            return
        for metric, value in flat(metrics, "/").items():
            if _drawable(value) and (metric in self._found or metric in self._wanted or len(self._found) < COLUMNS):
                self._found.setdefault(metric, _Curve()).add(index, counters, value)

    def figure(self) -> Figure:
        """The curves, one below the other. Names are shown literally, not as math text."""
        from matplotlib.figure import Figure

        made = Figure(figsize=(7, 2.2 * len(self.curves)), layout="constrained")
        for axes, (name, points) in zip(
            made.subplots(len(self.curves), squeeze=False)[:, 0], self.curves.items(), strict=True
        ):
            axes.plot(*zip(*points, strict=True), marker="o" if len(points) < 30 else None, markersize=3)
            axes.set_ylabel(_label(name), parse_math=False)
            axes.grid(alpha=0.3)
        axes.set_xlabel(self.counter or "report")
        return made


def png(made: Figure, dpi: int = 80) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a name may be in any script
        made.savefig(file, format="png", dpi=dpi)
    return file.getvalue()


def _drawable(value: Any) -> bool:
    """Whether a value is a number that is neither NaN nor infinite, nor an integer that no float can hold."""
    return is_number(value) and abs(value) <= LARGEST


def _label(name: str) -> str:
    text = " ".join(plain(name).split())
    return text if len(text) <= LABEL else f"{text[:LABEL]}…"
