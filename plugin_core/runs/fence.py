"""The fence: an attempt may write only while no later attempt has a receipt.

Receipts are consecutive and created if absent, so one lookup of the next receipt is enough. Storage has no write that is
conditional on another object, and a process may be suspended between check and write. So operations that could harm a later
attempt (Ray's snapshot, deletions) check every time, right before; writes to names with the attempt's own number
(checkpoints, journal) check at most once per `FENCE_CACHE_S`, since a late one leaves litter but does no damage.
"""

from __future__ import annotations

import threading
import time

from plugin_core.errors import FencedError
from plugin_core.runs import timings
from plugin_core.runs.directory import RunDir


class Fence:
    """The fence of one attempt of a run or child run. `check()` raises FencedError once a later attempt owns the run."""

    def __init__(self, run_uri: str, attempt: int):
        self.run_uri = run_uri
        self.attempt = attempt
        self._next = RunDir.at(run_uri).outermost.receipt_location(attempt + 1)
        self._lock = threading.Lock()
        self._looked: float | None = None

    def check(self, cached: bool = False) -> None:
        with self._lock:
            # the monotonic clock advances while a process is suspended, so an earlier check has expired afterwards
            if cached and self._looked is not None and time.monotonic() - self._looked < timings.FENCE_CACHE_S:
                return
            before = time.monotonic()
            self.judge(self.attempt + self._next.is_file())
            self._looked = before

    def judge(self, latest: int) -> None:
        """`check`, given the newest attempt's number."""
        if latest > self.attempt:
            raise FencedError(f"a later attempt owns {self.run_uri} now; attempt {self.attempt} stops writing")
