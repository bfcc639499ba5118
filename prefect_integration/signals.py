"""How a step learns that its process was told to end: Prefect passes it on to some tasks only."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from typing import Any

from prefect.task_runners import TaskRunner


def interrupted(runner: Any) -> bool:
    """Whether the main thread leaves a flow because of Ctrl-C, or an async flow with this task runner because it is
    cancelled, and now waits for the tasks that it submitted. Its stack alone tells: Prefect closes the task runner before
    anything else, and that waits."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_code.co_name == "__exit__":
            closing, kind = frame.f_locals.get("self"), frame.f_locals.get("exc_type")
            if isinstance(closing, TaskRunner) and isinstance(kind, type):
                ours = closing is runner and issubclass(kind, asyncio.CancelledError)
                if ours or issubclass(kind, KeyboardInterrupt):
                    return True
        frame = frame.f_back
    return False


def sigterm_seen() -> threading.Event:
    """An event set when this process gets SIGTERM. Prefect turns it into a TerminationSignal, which an awaiting coroutine
    sees only as CancelledError, the same as Ctrl-C or the user's own timeouts."""
    before = signal.getsignal(signal.SIGTERM)
    if isinstance(before, _NoteSigterm):
        return before.seen
    note = _NoteSigterm(before)
    # a flow awaited in another thread gets no signal; Prefect restores its own handler when the flow ends
    if threading.current_thread() is threading.main_thread() and callable(before):
        signal.signal(signal.SIGTERM, note)
    return note.seen


class _NoteSigterm:
    def __init__(self, handler: Any):
        self.handler = handler
        self.seen = threading.Event()

    def __call__(self, number: int, frame: Any) -> None:
        self.seen.set()
        self.handler(number, frame)
