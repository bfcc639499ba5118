"""What a run's journal says as a whole: read in one pass, and kept in memory that does not grow with the reports."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from plugin_core.runs.directory import RunDir
from plugin_core.runs.journal import index_of, iter_reports
from plugin_core.specs.json_values import is_number

#: A table or plot of more reports than this shows every so-manyth, and the last.
ROWS = 200
#: Names of metrics that a warning may list.
NAMES = 100

#: What a report may count, and the names of its total in the loop's config (Lightning's, Transformers' and our own words).
COUNTERS = {
    "epoch": ("epochs", "num_epochs", "max_epochs", "num_train_epochs"),
    "step": ("steps", "num_steps", "max_steps", "num_train_steps"),
    "iteration": ("iterations", "num_iterations", "num_boost_round"),
}


@dataclass
class History:
    """The reports of a run, those that a later attempt repeated counted twice.

    `there`: names of the checkpoints whose entries are wanted, as a rule those that still exist. `score`: the metric by
    which checkpoints are ranked, a path through nested ones by "/".
    """

    there: frozenset[str] = frozenset()
    score: str | None = None
    reports: int = 0
    #: as if nothing had ever been killed (see `journal_callback`)
    last_index: int = 0
    first: dict[str, Any] | None = None
    last: dict[str, Any] | None = None
    #: the newest that was reported, whether it still exists or not
    last_checkpoint: str | None = None
    #: the entries of those that are `there`, in the order of their reports
    checkpoints: dict[str, dict[str, Any]] = field(default_factory=dict)
    checkpointed: int = 0
    #: of these, how many have no number as their score
    unranked: int = 0
    #: what reports with a checkpoint have as metrics
    names: set[str] = field(default_factory=set)
    #: those of `COUNTERS` that every report has
    counters: list[str] = field(default_factory=lambda: list(COUNTERS))
    _sample: list[dict[str, Any]] = field(default_factory=list)
    _every: int = 1

    @classmethod
    def of(cls, reports: Iterable[dict[str, Any]], there: Iterable[str] = (), score: str | None = None) -> History:
        history = cls(frozenset(there), score)
        for entry in reports:
            history.add(entry)
        return history

    @classmethod
    def read(cls, rundir: RunDir, score: str | None = None) -> History:
        """Of the run so far, with the checkpoints that exist. Blocks. Raises StorageError."""
        return cls.of(iter_reports(rundir), rundir.location.names(), score)

    def add(self, entry: dict[str, Any]) -> None:
        # what each of a thousand workers reported is not kept
        entry = {name: value for name, value in entry.items() if name != "ranks"}
        metrics = entry["metrics"]
        self.reports += 1
        self.last_index = index_of(entry)
        self.first = self.first or entry
        self.last = entry
        self.counters = [name for name in self.counters if is_number(metrics.get(name))]
        if self.reports % self._every == 0:
            self._sample.append(entry)
            if len(self._sample) > ROWS:
                self._every *= 2
                self._sample = [kept for number, kept in enumerate(self._sample, 1) if number % 2 == 0]
        name = entry.get("checkpoint")
        if name:
            self._add_checkpoint(name, entry)

    def _add_checkpoint(self, name: str, entry: dict[str, Any]) -> None:
        metrics = entry["metrics"]
        self.last_checkpoint = name
        self.checkpointed += 1
        if self.score and not is_number(metric(metrics, self.score)):
            self.unranked += 1
        if len(self.names) < NAMES:
            self.names.update(metrics)
        if name in self.there:
            self.checkpoints[name] = entry

    @property
    def sample(self) -> list[dict[str, Any]]:
        """At most `ROWS` reports, evenly apart, and the last: at most `ROWS` + 1."""
        if self.last is None or (self._sample and self._sample[-1] is self.last):
            return list(self._sample)
        return [*self._sample, self.last]

    @property
    def metrics(self) -> dict[str, Any]:
        """Those of the last report."""
        return self.last["metrics"] if self.last else {}


def metric(metrics: dict[str, Any], name: str) -> Any:
    """A metric as Ray Train finds it: by its name, or by a path through nested ones."""
    if name in metrics or "/" not in name:
        return metrics.get(name)
    head, _, rest = name.partition("/")
    return metric(inner, rest) if isinstance(inner := metrics.get(head), dict) else None
