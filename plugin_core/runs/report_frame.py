"""A run's reports as a pandas DataFrame.

The journal is streamed into columns, with eight bytes for a number and never more than one segment of entries in
memory. So reading a million reports takes about as much memory as the frame itself.
"""

from __future__ import annotations

import logging
import math
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from plugin_core.errors import SpecError
from plugin_core.errors.shown import did_you_mean, shown
from plugin_core.runs.directory import RunDir
from plugin_core.runs.journal import JournalReader, index_of
from plugin_core.runs.trainings import training_of
from plugin_core.specs.extras import require
from plugin_core.specs.json_values import flat, is_count, is_number, is_time

if TYPE_CHECKING:
    import pandas

#: The most metrics that become columns, unless they are named.
COLUMNS = 1000
#: The most names that an error lists.
NAMES = 20
#: Integers up to this have an exact float; a larger one is kept as an object.
EXACT = 2**53
#: The columns besides the metrics. A metric with such a name becomes "metrics/NAME".
FIXED = ("report", "index", "attempt", "rank", "time", "checkpoint", "counts")

logger = logging.getLogger(__name__)


def history(
    run: str, metrics: Sequence[str] | None = None, *, rank: int | None = None, repeated: bool = False
) -> pandas.DataFrame:
    """The reports so far of a run, given by its path or URI: one row per report, or one per rank if the run kept all
    ranks (`report_all_ranks`). For a search, the reports are those of its best trial; for a retraining, those of its
    training.

    Columns: `report` (its number), `index` (its number in an uninterrupted training), `attempt`, `rank`, `time`
    (seconds since the epoch), `checkpoint` (its URI, which may be deleted by now; None without one), and a column for
    each metric, "a/b" for a nested one. The metrics of a checkpoint's validation are in the row of its report. A value
    that is null or missing in a report is NaN, or None in a column with text.

    After a kill, the workers continue from their last checkpoint and repeat the reports since then. The frame is that
    of a training without the kill: it leaves out a report that a later one with the same or a lower index replaced.
    `repeated`: keep these too, and add a column `counts` that says which rows count.

    `metrics`: only these (default: all, at most `COLUMNS`). `rank`: only this rank's rows (default: all that were
    kept). Raises SpecError if there is no such run, metric or rank, or pandas is missing; StorageError if the run
    cannot be read.
    """
    require("history", run, "pandas", "history", where="here")
    rundir = training_of(RunDir.at(run))
    table = _Table(rundir, metrics, rank)
    for entry in JournalReader(rundir):
        if "report" in entry:
            table.add(entry)
        elif entry.get("phase") == "validated":
            table.add_validation(entry)
    return table.frame(repeated)


class _Column:
    """The values of one metric. `whole`: whether each row so far has a value, and all are integers."""

    def __init__(self) -> None:
        self.values: array[float] | list[Any] = array("d")
        self.whole = True

    def put(self, row: int, value: Any) -> None:
        """Set the value of a row: a later row than the ones so far, or an earlier one again."""
        self.fill(row)
        if isinstance(self.values, array):
            if value is None or isinstance(value, float):
                self.whole = False
                value = math.nan if value is None else value
            elif not (is_number(value) and abs(value) <= EXACT):
                self.values = [_object(number, self.whole) for number in self.values]
        if row < len(self.values):
            self.values[row] = value
        else:
            self.values.append(value)

    def fill(self, rows: int) -> None:
        """Extend the column to this many rows; the added ones have no value."""
        missing = rows - len(self.values)
        if missing > 0:
            self.whole = False
            if isinstance(self.values, array):
                self.values.extend(array("d", [math.nan]) * missing)
            else:
                self.values.extend([None] * missing)

    def series(self, rows: int) -> Any:
        """The column for a frame of this many rows."""
        import numpy
        import pandas

        self.fill(rows)
        if isinstance(self.values, list):
            return pandas.Series(self.values)
        numbers = numpy.frombuffer(self.values) if self.values else numpy.empty(0)
        return numbers.astype(numpy.int64) if self.whole else numbers


def _object(number: float, whole: bool) -> Any:
    return int(number) if whole else None if math.isnan(number) else number


class _Table:
    """The rows so far, by column."""

    def __init__(self, rundir: RunDir, wanted: Sequence[str] | None, rank: int | None):
        self._rundir, self._rank = rundir, rank
        self._wanted = dict.fromkeys(wanted) if wanted is not None else None
        self._numbers = {name: array("q") for name in ("report", "index", "attempt", "rank")}
        self._times = array("d")
        self._checkpoints: list[str | None] = []
        self._metrics: dict[str, _Column] = {}
        self._others: dict[str, None] = {}
        #: the rows of each checkpoint whose validation has not ended
        self._validating: dict[str, range] = {}
        self._reports = self._ranks = 0

    def add(self, entry: dict[str, Any]) -> None:
        numbers = (entry["report"], index_of(entry), entry.get("attempt", 0))
        if not all(map(is_count, numbers)):
            logger.warning("history: leaving out a report with impossible numbers: %.80r", numbers)
            return
        ranks = entry.get("ranks") or [entry["metrics"]]
        self._reports, self._ranks = self._reports + 1, max(self._ranks, len(ranks))
        name = entry["checkpoint"]
        checkpoint = self._rundir.location.child(name).uri if name is not None else None
        first = len(self._times)
        time = entry["time"] if is_time(entry["time"]) else math.nan
        for rank, metrics in enumerate(ranks):
            if self._rank is None or rank == self._rank:
                for column, number in zip(self._numbers.values(), (*numbers, rank), strict=True):
                    column.append(number)
                self._times.append(time)
                self._checkpoints.append(checkpoint)
                self._put(len(self._times) - 1, metrics)
        if name is not None and "validation" in entry:
            self._validating[name] = range(first, len(self._times))

    def add_validation(self, entry: dict[str, Any]) -> None:
        """Add the metrics of a checkpoint's validation to those of its report."""
        for row in self._validating.pop(entry.get("checkpoint") or "", ()):
            self._put(row, entry.get("metrics"))

    def _put(self, row: int, metrics: Any) -> None:
        for name, value in (flat(metrics, "/") if metrics and isinstance(metrics, dict) else {}).items():
            column = self._metrics.get(name)
            if column is None:
                if len(self._metrics) >= COLUMNS if self._wanted is None else name not in self._wanted:
                    if len(self._others) < COLUMNS:
                        self._others[name] = None
                    continue
                column = self._metrics[name] = _Column()
            column.put(row, value)

    def frame(self, repeated: bool) -> pandas.DataFrame:
        import numpy
        import pandas

        self._check()
        rows, names = len(self._times), self._wanted if self._wanted is not None else self._metrics
        columns: dict[str, Any] = {
            name: numpy.frombuffer(values, numpy.int64) if values else numpy.empty(0, numpy.int64)
            for name, values in self._numbers.items()
        }
        columns["time"] = numpy.frombuffer(self._times) if rows else numpy.empty(0)
        columns["checkpoint"] = pandas.Series(self._checkpoints, dtype=object)
        counts = _counting(columns["index"], columns["rank"])
        if repeated:
            columns["counts"] = counts
        for name in list(names):
            # taken out, so that a column is not held twice
            column = self._metrics.pop(name, None) or _Column()
            columns[f"metrics/{name}" if name in FIXED else name] = column.series(rows)
        frame = pandas.DataFrame(columns, copy=False)
        return frame if repeated or counts.all() else frame[counts].reset_index(drop=True)

    def _check(self) -> None:
        """Raise SpecError if no report has what was asked for; log what was left out."""
        if self._reports and self._rank is not None and not 0 <= self._rank < self._ranks:
            kept = f"0 to {self._ranks - 1}" if self._ranks > 1 else "0, as the run has no report_all_ranks"
            raise SpecError(f"rank: got {self._rank} of {self._rundir.uri}, which has no reports of it; expected {kept}")
        if self._wanted is None:
            if self._others:
                logger.warning(
                    "history: %s has more than %d metrics; the first %d are columns, `metrics` names others",
                    *(self._rundir.uri, COLUMNS, COLUMNS),
                )
            return
        if self._reports:
            for name in self._wanted:
                if name not in self._metrics:
                    raise no_metric("metrics", name, [*self._metrics, *self._others])


def no_metric(field: str, name: str, others: Sequence[str]) -> SpecError:
    """The error about a metric that no report has."""
    known = ", ".join(shown(other) for other in others[:NAMES]) + (", …" if len(others) > NAMES else "")
    return SpecError(
        f"{field}: got {shown(name)}, which no report has; expected one of {known or 'none'}{did_you_mean(name, others)}"
    )


def _counting(index: Any, rank: Any) -> Any:
    """Which rows count: those whose report has a lower index than every later one. Within a report, ranks increase."""
    import numpy

    if not len(index):
        return numpy.empty(0, bool)
    starts = numpy.flatnonzero(numpy.r_[True, rank[1:] <= rank[:-1]])
    own = index[starts]
    later = numpy.r_[numpy.minimum.accumulate(own[::-1])[::-1][1:], numpy.iinfo(numpy.int64).max]
    return numpy.repeat(own < later, numpy.diff(numpy.r_[starts, len(index)]))
