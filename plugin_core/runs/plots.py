"""A picture of a run's metrics, drawn with matplotlib."""

from __future__ import annotations

import io
import warnings
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from plugin_core.errors import SpecError
from plugin_core.errors.plain_text import plain
from plugin_core.runs.directory import RunDir
from plugin_core.runs.history import COUNTERS, History
from plugin_core.runs.journal import index_of, iter_reports
from plugin_core.runs.report_frame import no_metric, training_of
from plugin_core.specs.extras import require
from plugin_core.specs.json_values import flat, is_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Most metrics that are drawn unless they are named.
CURVES = 6
#: Most that can be named.
MOST_CURVES = 50
#: Beyond this, matplotlib's own sums overflow.
LARGEST = 1e300
#: Most characters of a label.
LABEL = 60

Points = list[tuple[float, float]]


def plot(run: str, *metrics: str) -> Figure:
    """Draw metrics of a run so far, by its path or URI, each in a diagram of its own (default: the first `CURVES`). Many
    reports are sampled (`History.sample`); of those that a later attempt repeated, the last are drawn. Of a search and
    a retraining as for `history`. Raises SpecError if there is nothing to draw or matplotlib is missing; StorageError."""
    require("plot", run, "matplotlib", "history", where="here")
    if len(metrics) > MOST_CURVES:
        raise SpecError(f"metrics: got {len(metrics)}; expected at most {MOST_CURVES}")
    history = History.of(iter_reports(training_of(RunDir.at(run))))
    drawn = curves(history, metrics)
    if not drawn:
        raise SpecError(
            f"run: got {run!r}, which has no metric to draw yet; expected at least two reports of the same number"
        )
    return figure(history, drawn)


def curves(history: History, wanted: Collection[str] = ()) -> dict[str, Points]:
    """The points of each metric that has at least two, over the first counter that all reports share, or else over the
    index of the report. `wanted`: these, or SpecError; else the first `CURVES`."""
    counter = _counter(history)
    found: dict[str, dict[float, float]] = {}
    for entry in _uninterrupted(history.sample):
        place = entry["metrics"][counter] if counter else index_of(entry)
        if not _drawable(place):
            continue
        for name, value in flat(entry["metrics"], "/").items():
            if _drawable(value) and (name in wanted if wanted else name not in (*COUNTERS, "progress")):
                found.setdefault(name, {})[place] = value
    for name in wanted:
        if name not in found:
            known = [name for name, value in flat(history.metrics, "/").items() if _drawable(value)]
            raise no_metric("metrics", name, known)
    names = list(wanted) or list(found)[:CURVES]
    return {name: points for name in names if len(points := sorted(found[name].items())) > 1}


def figure(history: History, drawn: dict[str, Points]) -> Figure:
    """Draw `curves`, one below the other. The names are shown as they are, not as mathematics."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(7, 2.2 * len(drawn)), layout="constrained")
    for axes, (name, points) in zip(made.subplots(len(drawn), squeeze=False)[:, 0], drawn.items(), strict=True):
        axes.plot(*zip(*points, strict=True), marker="o" if len(points) < 30 else None, markersize=3)
        axes.set_ylabel(_label(name), parse_math=False)
        axes.grid(alpha=0.3)
    axes.set_xlabel(_counter(history) or "report")
    return made


def png(made: Figure, dpi: int = 80) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a name may be in any script
        made.savefig(file, format="png", dpi=dpi)
    return file.getvalue()


def _counter(history: History) -> str | None:
    return history.counters[0] if history.counters else None


def _uninterrupted(reports: Iterable[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """The reports that no later one replaced."""
    kept: list[dict[str, Any]] = []
    for entry in reports:
        while kept and index_of(kept[-1]) >= index_of(entry):
            kept.pop()
        kept.append(entry)
    return kept


def _drawable(value: Any) -> bool:
    """Neither NaN nor infinite, nor an integer that no float can hold."""
    return is_number(value) and abs(value) <= LARGEST


def _label(name: str) -> str:
    text = " ".join(plain(name).split())
    return text if len(text) <= LABEL else f"{text[:LABEL]}…"
