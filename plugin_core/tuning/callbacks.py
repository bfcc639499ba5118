"""What we listen to on Ray Tune, in the driver: progress into the journal, and when to stop.

Ray Tune pickles these objects into its state and restores them from there, so they hold nothing: what they need is the
search of this process.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ray.tune import Callback, Stopper

from plugin_core.errors import SpecError
from plugin_core.failures import classify
from plugin_core.journal import JournalWriter
from plugin_core.jsonsafe import json_safe
from plugin_core.progress import is_number

if TYPE_CHECKING:
    from plugin_core.steps.tune import Search

_search: Search | None = None
_journal: JournalWriter | None = None
_state: dict[str, Any] = {}


def begin(search: Search) -> Search:
    global _search, _journal
    _search, _journal = search, JournalWriter(search.context.rundir, search.context.attempt)
    _state.clear()
    _state.update(reports=0, best=None, over=set())
    return search


def end() -> None:
    if _journal is not None:
        _journal.close()


class Report(Callback):
    """Each report of a trial becomes one of the search: which trial, its metric, the best so far, how many trials are
    over."""

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any) -> None:
        assert _search is not None
        value = result.get(_search.spec.metric)
        if is_number(value) and value == value:
            better = max if _search.spec.mode == "max" else min
            _state["best"] = value if _state["best"] is None else better(_state["best"], value)
        self._write(trial, value)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        _state["over"].add(trial.trial_id)
        self._write(trial, (trial.last_result or {}).get(_search.spec.metric) if _search else None)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        assert _search is not None
        _state["over"].add(trial.trial_id)
        error = classify(trial.get_pickled_error() or trial.get_error() or RuntimeError("the trial failed"))
        if isinstance(error, SpecError):
            # what is wrong with the spec is wrong with every trial
            _search.fatal = error

    @staticmethod
    def _write(trial: Any, value: Any) -> None:
        assert _search is not None
        assert _journal is not None
        _state["reports"] += 1
        metrics = {
            "trial": trial.trial_id,
            _search.spec.metric: json_safe(value),
            "best": json_safe(_state["best"]),
            "trials_over": len(_state["over"]),
            "progress": min(1.0, len(_state["over"]) / _search.spec.trials),
        }
        _journal.append({"report": _state["reports"], "metrics": metrics, "checkpoint": None})


class Stop(Stopper):
    """A trial is over when a metric reaches its number; the search, when its time is, or when the spec proved wrong."""

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        assert _search is not None
        return any(is_number(result.get(name)) and result[name] >= at for name, at in _search.spec.stop.items())

    def stop_all(self) -> bool:
        if _search is None:
            return False
        late = _search.deadline is not None and time.monotonic() > _search.deadline
        return late or _search.fatal is not None
