"""The interface of a tracker."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from plugin_core.specs.json_values import flat
from plugin_core.specs.tracking import Tracker
from plugin_core.tracking.subject import Subject


@dataclass(frozen=True)
class Entry:
    """One report: its `index` (from 1, as if no attempt had been killed), the `step` it is logged at, its wall time in
    seconds, its numeric metrics (NaN for NaN and infinities), and its checkpoint's URI."""

    index: int
    step: int
    time: float
    metrics: dict[str, float]
    checkpoint: str | None = None


class Backend(ABC):
    """One run at one tracker. Methods block, are called from one thread, and raise whatever the tracker's client raises.
    Failed calls are repeated with the same arguments, so logging an entry twice must be idempotent."""

    def __init__(self, config: Tracker, subject: Subject):
        self.config = config
        self.subject = subject
        self.url: str | None = None
        #: called on progress within a long call, so that the call is not mistaken for a hang
        self.moved: Callable[[], None] = lambda: None

    @abstractmethod
    def begin(self) -> int:
        """Find or create the tracking run; return the index of the last report it has."""

    @abstractmethod
    def log(self, entries: list[Entry]) -> None: ...

    @abstractmethod
    def end(self, status: str, message: str) -> None:
        """End the tracking run. `status`: "finished", "failed" or "killed"."""

    @abstractmethod
    def leave(self) -> None:
        """This attempt is over, but the run continues."""

    def worker_environment(self) -> dict[str, str]:
        """Variables that make rank 0's own tracker calls join the run."""
        return {}

    def other_workers_environment(self) -> dict[str, str]:
        """Variables that keep the other ranks from creating runs."""
        return {}


def last_checkpoint(entries: list[Entry]) -> str | None:
    return next((entry.checkpoint for entry in reversed(entries) if entry.checkpoint), None)


def numbers(metrics: dict[str, Any]) -> dict[str, float]:
    """The numeric metrics, nested ones under joined names; None, which stands for NaN and Inf in reports, becomes NaN."""
    found = {}
    for name, value in flat(metrics, "/").items():
        if value is None:
            found[name] = math.nan
        elif isinstance(value, (int, float)):
            try:
                found[name] = float(value)
            except OverflowError:  # an integer of more than 308 digits
                found[name] = math.nan
    return found
