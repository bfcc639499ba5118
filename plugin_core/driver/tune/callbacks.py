"""What we listen to on Ray Tune, in the driver: progress into the journal, and when to stop.

Ray Tune pickles these objects into its state and restores them from there, so they hold nothing: what they need is the
search of this process.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ray.tune import Callback, Stopper

from plugin_core.errors import SpecError
from plugin_core.errors.classify import classify
from plugin_core.runs.journal import JournalWriter
from plugin_core.specs.json_values import is_number, json_safe

if TYPE_CHECKING:
    from plugin_core.specs import TuneSpec


@dataclass
class Search:
    """The one search of this process: `deadline` on the monotonic clock, `fatal` what is wrong with every trial; and how
    far it is."""

    spec: TuneSpec
    journal: JournalWriter
    deadline: float | None
    fatal: SpecError | None = None
    reports: int = 0
    best: float | None = None
    over: set[str] = field(default_factory=set)

    def tell(self, trial: Any, value: Any) -> None:
        """A report of a trial, as one of the search."""
        self.reports += 1
        metrics = {
            "trial": trial.trial_id,
            self.spec.metric: json_safe(value),
            "best": json_safe(self.best),
            "trials_over": len(self.over),
            "progress": min(1.0, len(self.over) / self.spec.trials),
        }
        self.journal.append({"report": self.reports, "metrics": metrics, "checkpoint": None})


_search: Search | None = None


def begin(search: Search) -> Search:
    global _search
    _search = search
    return search


def _current() -> Search:
    assert _search is not None
    return _search


class Report(Callback):
    """Each report of a trial becomes one of the search: which trial, its metric, the best so far, how many trials are
    over."""

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any) -> None:
        search = _current()
        value: Any = result.get(search.spec.metric)
        if is_number(value) and value == value:
            better = max if search.spec.mode == "max" else min
            search.best = value if search.best is None else better(search.best, value)
        search.tell(trial, value)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        search = _current()
        search.over.add(trial.trial_id)
        search.tell(trial, (trial.last_result or {}).get(search.spec.metric))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        search = _current()
        search.over.add(trial.trial_id)
        error = classify(trial.get_pickled_error() or trial.get_error() or RuntimeError("the trial failed"))
        if isinstance(error, SpecError):
            # what is wrong with the spec is wrong with every trial
            search.fatal = error


class Stop(Stopper):
    """A trial is over when a metric reaches its number; the search, when its time is, or when the spec proved wrong."""

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return any(is_number(result.get(name)) and result[name] >= at for name, at in _current().spec.stop.items())

    def stop_all(self) -> bool:
        if _search is None:
            return False
        late = _search.deadline is not None and time.monotonic() > _search.deadline
        return late or _search.fatal is not None
