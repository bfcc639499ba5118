"""Summarise a run's journal in one pass, in memory that does not grow with the number of reports."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from plugin_core.runs.directory import RunDir
from plugin_core.runs.journal import JournalReader, index_of
from plugin_core.runs.recovery import Recovery
from plugin_core.specs.json_values import is_number

#: A table or plot of more reports than this is sampled at a fixed stride, plus the last.
ROWS = 200
#: The most warnings that are kept.
WARNINGS = 20
#: How a validation without metrics ended.
_ENDS = {"failed": "failed; its error is in the job's log", "timed_out": "took longer than validation.timeout_s"}
#: The most metric names that a warning lists.
NAMES = 100

#: Counters in a report → names of their totals in the loop's config (Lightning's, Transformers' and our own).
COUNTERS = {
    "epoch": ("epochs", "num_epochs", "max_epochs", "num_train_epochs"),
    "step": ("steps", "num_steps", "max_steps", "num_train_steps"),
    "iteration": ("iterations", "num_iterations", "num_boost_round"),
}


@dataclass
class History:
    """The reports of a run; those repeated by a later attempt count twice. A checkpoint's metrics include those of its
    validation.

    `there`: names of the checkpoints whose entries to keep, usually those that still exist. `score`: the metric that ranks
    checkpoints, with "/" for nested metrics.
    """

    there: frozenset[str] = frozenset()
    score: str | None = None
    reports: int = 0
    #: the index in an uninterrupted run (see `journal_callback`)
    last_index: int = 0
    first: dict[str, Any] | None = None
    last: dict[str, Any] | None = None
    #: the last reported checkpoint, even if it no longer exists
    last_checkpoint: str | None = None
    #: the entries of the checkpoints in `there`, in report order
    checkpoints: dict[str, dict[str, Any]] = field(default_factory=dict)
    checkpointed: int = 0
    #: how many of these have no numeric score
    unranked: int = 0
    #: metric names in reports with a checkpoint
    names: set[str] = field(default_factory=set)
    #: the `COUNTERS` that every report has
    counters: list[str] = field(default_factory=lambda: list(COUNTERS))
    _sample: list[dict[str, Any]] = field(default_factory=list)
    _every: int = 1
    #: what the result should warn about
    warnings: list[str] = field(default_factory=list)
    #: checkpoints whose report has no score, but whose validation may
    _unscored: set[str] = field(default_factory=set)
    recovery: Recovery = field(default_factory=Recovery)

    @classmethod
    def of(cls, entries: Iterable[dict[str, Any]], there: Iterable[str] = (), score: str | None = None) -> History:
        history = cls(frozenset(there), score)
        for entry in entries:
            history.add(entry)
        return history

    @classmethod
    def read(cls, rundir: RunDir, score: str | None = None) -> History:
        """The run's history so far, with the checkpoints that exist. Blocks. Raises StorageError."""
        return cls.of(JournalReader(rundir), rundir.location.names(), score)

    def add(self, entry: dict[str, Any]) -> None:
        """Take in the next entry of the journal."""
        if "report" in entry:
            self._add_report(entry)
        elif "cause" in entry:
            self._add_failure(entry)
        elif entry.get("phase") == "validated":
            self._add_validation(entry)
        elif entry.get("phase") == "stored":
            self._add_checkpoint(entry["checkpoint"], entry)
        elif "warning" in entry and len(self.warnings) < WARNINGS and entry["warning"] not in self.warnings:
            self.warnings.append(str(entry["warning"]))

    def _add_report(self, entry: dict[str, Any]) -> None:
        # drop the reports of up to thousands of individual workers
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
            if "validation" in entry:
                self._unscored.add(name)
        if len(self.names) < NAMES:
            self.names.update(metrics)
        if name in self.there:
            self.checkpoints[name] = entry

    def _add_failure(self, entry: dict[str, Any]) -> None:
        """Checkpoints that the failure's rule dropped no longer count, although they are still there."""
        self.recovery.add(entry)
        self.there -= self.recovery.dropped
        for name in self.recovery.dropped:
            self.checkpoints.pop(name, None)

    def _add_validation(self, entry: dict[str, Any]) -> None:
        name, metrics = entry["checkpoint"], entry["metrics"]
        if name in self._unscored and self.score and is_number(metric(metrics, self.score)):
            self._unscored.remove(name)
            self.unranked -= 1
        if entry["status"] != "validated":
            self.add({"warning": f"validation: that of {name} {_ENDS.get(entry['status'], entry['status'])}"})
        for kept in (self.checkpoints.get(name), self.last):
            if kept is not None and kept.get("checkpoint") == name:
                merged = {**kept, "metrics": {**kept["metrics"], **metrics}}
                merged.pop("validation", None)
                if kept is self.last:
                    self.last = merged
                if name in self.checkpoints:
                    self.checkpoints[name] = merged

    @property
    def sample(self) -> list[dict[str, Any]]:
        """Up to `ROWS` evenly spaced reports plus the last one, so at most `ROWS` + 1."""
        if self.last is None or (self._sample and self._sample[-1] is self.last):
            return list(self._sample)
        return [*self._sample, self.last]

    @property
    def metrics(self) -> dict[str, Any]:
        """The last report's metrics."""
        return self.last["metrics"] if self.last else {}


def metric(metrics: dict[str, Any], name: str) -> Any:
    """Look up a metric as Ray Train does: by name, or by "/"-joined path."""
    if name in metrics or "/" not in name:
        return metrics.get(name)
    head, _, rest = name.partition("/")
    return metric(inner, rest) if isinstance(inner := metrics.get(head), dict) else None
