"""Ray Tune callbacks in the driver: they write progress to the journal and decide when to stop.

Ray Tune pickles these objects into its state and restores them from it, so they are stateless and use the search of this
process.
"""

from __future__ import annotations

import pickle
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray.tune import Callback, Stopper

from plugin_core.driver.tune.report_channel import REPORTS
from plugin_core.errors import SpecError
from plugin_core.errors.classify import classify
from plugin_core.runs.journal import JournalWriter
from plugin_core.specs.json_values import is_number, json_safe

if TYPE_CHECKING:
    from plugin_core.specs import TuneSpec


@dataclass
class Search:
    """The one search of this process, with its progress. `deadline`: on the monotonic clock; `fatal`: an error that affects
    every trial; `trials`: how many there will be; `best`: the best metric so far."""

    spec: TuneSpec
    journal: JournalWriter
    deadline: float | None
    trials: int
    fatal: SpecError | None = None
    reports: int = 0
    best: float | None = None
    over: set[str] = field(default_factory=set)

    def tell(self, trial: Any, result: dict[str, Any]) -> None:
        """Write a trial's report to the journal as a report of the search."""
        value = result.get(self.spec.metric)
        self.reports += 1
        metrics = {
            "trial": trial.trial_id,
            self.spec.metric: json_safe(value),
            "best": json_safe(self.best),
            "trials_over": len(self.over),
            "progress": min(1.0, len(self.over) / self.trials),
        }
        of_trial = {"of_trial": result.get(REPORTS), "trials": self.trials}
        self.journal.append({"report": self.reports, "metrics": metrics, "checkpoint": None, **of_trial})


_search: Search | None = None


def begin(search: Search) -> Search:
    global _search
    _search = search
    return search


def _current() -> Search:
    assert _search is not None
    return _search


class Report(Callback):
    """Turns each trial's report into a report of the search: the trial, its metric, the best so far, and how many trials
    have ended."""

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any) -> None:
        search = _current()
        value: Any = result.get(search.spec.metric)
        if is_number(value) and value == value:
            better = max if search.spec.mode == "max" else min
            search.best = value if search.best is None else better(search.best, value)
        search.tell(trial, result)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        search = _current()
        search.over.add(trial.trial_id)
        search.tell(trial, trial.last_result or {})

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        search = _current()
        search.over.add(trial.trial_id)
        if (error := _spec_error(trial)) is not None:
            # it affects every trial
            search.fatal = error


def _spec_error(trial: Any) -> SpecError | None:
    """The error that a trial has just ended with, if it is a SpecError. `Trial.get_pickled_error` would read the copy on
    storage, which another thread may be writing."""
    try:
        error = classify(pickle.loads(Path(trial.pickled_error_file).read_bytes()))
    except Exception:  # noqa: BLE001 - another error's class may be unknown here, or there is no file of one
        return None
    return error if isinstance(error, SpecError) else None


class Stop(Stopper):
    """Stops a trial when a metric reaches its limit; stops the search at its deadline, or if the spec proves wrong."""

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return any(is_number(result.get(name)) and result[name] >= at for name, at in _current().spec.stop.items())

    def stop_all(self) -> bool:
        if _search is None:
            return False
        late = _search.deadline is not None and time.monotonic() > _search.deadline
        return late or _search.fatal is not None
