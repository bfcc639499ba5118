"""What a tracker has to be able to do."""

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
    """One report: its `index` (counted from 1, as if nothing had been killed), the `step` it is logged at, its wall time
    in seconds, the numbers in it (NaN where one was NaN or infinite), and its checkpoint's URI."""

    index: int
    step: int
    time: float
    metrics: dict[str, float]
    checkpoint: str | None = None


class Backend(ABC):
    """One run at one tracker. Methods block, are called from one thread, and raise whatever the tracker's client raises;
    they are then called again with the same, so logging an entry twice must leave it there once."""

    def __init__(self, config: Tracker, subject: Subject):
        self.config = config
        self.subject = subject
        self.url: str | None = None
        #: to be called where something of a longer call is done, so that the call is not taken for one that hangs
        self.moved: Callable[[], None] = lambda: None

    @abstractmethod
    def begin(self) -> int:
        """Find the tracking run or create it; returns the index of the last report that it has."""

    @abstractmethod
    def log(self, entries: list[Entry]) -> None: ...

    @abstractmethod
    def end(self, status: str, message: str) -> None:
        """`status`: "finished", "failed" or "killed"."""

    @abstractmethod
    def leave(self) -> None:
        """This attempt is over, the run goes on."""

    def worker_environment(self) -> dict[str, str]:
        """By which rank 0's own calls of the tracker join the run."""
        return {}

    def other_workers_environment(self) -> dict[str, str]:
        """By which the other ranks are kept from creating runs."""
        return {}


def last_checkpoint(entries: list[Entry]) -> str | None:
    return next((entry.checkpoint for entry in reversed(entries) if entry.checkpoint), None)


def numbers(metrics: dict[str, Any]) -> dict[str, float]:
    """The numbers among metrics, nested ones under joined names; None, as NaN and Inf are reported, is NaN."""
    found = {}
    for name, value in flat(metrics, "/").items():
        if value is None:
            found[name] = math.nan
        elif isinstance(value, (int, float)):
            found[name] = float(value)
    return found
