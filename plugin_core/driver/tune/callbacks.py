"""Ray Tune callbacks in the driver: they write progress to the journal and decide when to stop.

Ray Tune pickles these objects into its state and restores them from it, so they are stateless and use the search of this
process.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray.tune import Callback, Stopper

from plugin_core.driver.tune.report_channel import LEG, REPORTS
from plugin_core.errors import SpecError
from plugin_core.errors.classify import classify
from plugin_core.runs.history import metric
from plugin_core.runs.journal import JournalWriter
from plugin_core.specs.json_values import is_number, json_safe

if TYPE_CHECKING:
    from plugin_core.specs import TuneSpec


@dataclass
class Search:
    """The one search of this process, with its progress. `deadline`: on the monotonic clock; `fatal`: an error that affects
    every trial; `trials`: how many there will be; `best`: the best metric so far; `told`: a trial's run → the number of its
    last report in the journal; `over`: the trials that have ended, once they are `counted`; `release`: called once, when
    the search stops its trials."""

    spec: TuneSpec
    journal: JournalWriter
    deadline: float | None
    trials: int
    fatal: SpecError | None = None
    reports: int = 0
    best: float | None = None
    told: dict[str, int] = field(default_factory=dict)
    over: set[str] = field(default_factory=set)
    counted: bool = False
    release: Callable[[], Any] | None = None

    def goes_on(self, entries: Iterable[dict[str, Any]]) -> None:
        """Take in the reports of earlier attempts, so that this one's follow them."""
        for entry in entries:
            self.reports += 1
            self.see(entry["metrics"].get("best"))
            if isinstance(run := entry.get("run"), str) and isinstance(number := entry.get("of_trial"), int):
                self.told[run] = max(number, self.told.get(run, 0))

    def see(self, value: Any) -> None:
        if is_number(value) and value == value:
            better = max if self.spec.mode == "max" else min
            self.best = value if self.best is None else better(self.best, value)

    def count(self, trials: Iterable[Any]) -> None:
        """Count the trials that had ended when this attempt began."""
        if not self.counted:
            self.counted = True
            self.over.update(trial.trial_id for trial in trials if trial.is_finished())

    def tell(self, trial: Any, result: dict[str, Any], ends: bool = False) -> None:
        """Write a trial's report to the journal as a report of the search. A trial that is resumed gives its first ones
        again. `ends`: the last report again, as the trial has ended."""
        value, run, number = result.get(self.spec.metric), result.get(LEG), result.get(REPORTS)
        if not ends and number is not None and number <= self.told.get(str(run), -1):
            return
        if number is not None:
            self.told[str(run)] = number
        self.reports += 1
        metrics = {
            "trial": trial.trial_id,
            self.spec.metric: json_safe(value),
            "best": json_safe(self.best),
            "trials_over": len(self.over),
            "progress": min(1.0, len(self.over) / self.trials),
        }
        of_trial = {"of_trial": number, "trials": self.trials, "run": run}
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
        search.count(trials)
        search.see(result.get(search.spec.metric))
        search.tell(trial, result)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        search = _current()
        search.count(trials)
        search.over.add(trial.trial_id)
        search.tell(trial, trial.last_result or {}, ends=True)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        search = _current()
        search.count(trials)
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
        limits = _current().spec.stop.items()
        return any(is_number(value := metric(result, name)) and value >= at for name, at in limits)

    def stop_all(self) -> bool:
        if _search is None:
            return False
        late = _search.deadline is not None and time.monotonic() > _search.deadline
        over = late or _search.fatal is not None
        if over and _search.release is not None:
            release, _search.release = _search.release, None
            release()
        return over
