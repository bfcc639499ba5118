"""How long a training may be quiet, learned from its reports."""

from __future__ import annotations

import statistics
import time
from collections import deque

from plugin_core.specs.hang import HangDetection

#: How many of the latest intervals the median is taken over.
WINDOW = 100
#: The longest interval so far may come again and take somewhat longer: an evaluation, an epoch's end.
TIMES_LONGEST = 3.0


class Clock:
    """Seconds in which the controller polled its workers. While its own process stands still, it hears no report, so such a
    pause says nothing about the training."""

    def __init__(self) -> None:
        self._seconds, self._read = 0.0, time.monotonic()

    def read(self, longest: float) -> float:
        """The seconds so far. Those since the last call count up to `longest`, the longest that polls lie apart."""
        now = time.monotonic()
        self._seconds, self._read = self._seconds + min(now - self._read, longest), now
        return self._seconds


class Rhythm:
    """All times come from the same `Clock`, in seconds."""

    def __init__(self, config: HangDetection, now: float):
        self._config = config
        self._intervals: deque[float] = deque(maxlen=WINDOW)
        self._longest = 0.0
        #: when this worker group reported last, and when it last gave a sign of progress
        self._reported: float | None = None
        self._moved = now

    def begin(self, now: float) -> None:
        """A worker group's train functions begin."""
        self._reported, self._moved = None, now

    def report(self, now: float) -> None:
        if self._reported is not None:
            self._intervals.append(now - self._reported)
            self._longest = max(self._longest, now - self._reported)
        self._reported = self._moved = now

    def progress(self, now: float) -> None:
        self._moved = now

    def quiet_s(self, now: float) -> float:
        return now - self._moved

    @property
    def bound_s(self) -> float:
        if not self._intervals:
            return self._config.start_s
        usual = max(self._config.factor * statistics.median(self._intervals), TIMES_LONGEST * self._longest)
        learned = max(self._config.min_s, usual)
        # before a worker group's first report, the checkpoint is read and everything is compiled again
        return learned if self._reported is not None else max(learned, self._config.start_s)

    @property
    def learned(self) -> str:
        """Where the bound comes from, in words."""
        if not self._intervals:
            return "before the first two reports"
        return f"reports came every {statistics.median(self._intervals):.3g} s, at most {self._longest:.3g} s apart"
