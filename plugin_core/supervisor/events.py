"""What a run tells while it is followed: events for programs, lines for people (`story` turns events into lines)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from plugin_core.supervisor.progress import Reading


@dataclass(frozen=True)
class Event:
    """Something that happened at `time` (seconds since the epoch). Kinds: "state" (a decision), "phase" and "report"
    (journal entry in `data`; a report also has its progress `reading`), "link" (the run's page at a tracker; `data` maps
    tracker to URL), "log" (lines of the job's log) and "outcome" (how it ended, in words). `level`: as in `logging`."""

    kind: str
    text: str
    data: dict[str, Any] = field(default_factory=dict)
    reading: Reading = field(default_factory=Reading)
    time: float = field(default_factory=time.time)
    level: int = logging.INFO


@dataclass(frozen=True)
class Line:
    """A line of the log that a person reads. `lines`: what it stands for, to be folded below it where possible and
    printed in its place elsewhere; usually empty."""

    text: str
    level: int = logging.INFO
    time: float = field(default_factory=time.time)
    lines: tuple[str, ...] = ()


Listener = Callable[[Event], None]
Log = Callable[[Line], None]
