"""The fence: an attempt may write only as long as no later attempt has a receipt.

Receipts are consecutive and made create-if-absent, so one look at the next one tells. Storage offers no write that is
conditional on another object, and between the look and the write a process can be stopped for any time. So what could harm
the later attempt (Ray's snapshot, deletions) is looked at each time, right before; and what bears the attempt's number
in its own name (checkpoints, journal) at most once in `CACHE_S`, since written late it is litter, never damage.
"""

from __future__ import annotations

import threading
import time

from plugin_core.errors import FencedError
from plugin_core.runs.directory import RunDir

#: Seconds that a look at the next receipt holds for writes under names of the attempt's own.
CACHE_S = 1.0


class Fence:
    """Of one attempt of a run, or of one within it. `check()` raises FencedError once a later attempt owns the run."""

    def __init__(self, run_uri: str, attempt: int):
        self.run_uri = run_uri
        self.attempt = attempt
        self._next = RunDir.at(run_uri).outermost.receipt_location(attempt + 1)
        self._lock = threading.Lock()
        self._looked: float | None = None

    def check(self, cached: bool = False) -> None:
        with self._lock:
            # the monotonic clock goes on while a process is stopped, so a look from before a stop is old after it
            if cached and self._looked is not None and time.monotonic() - self._looked < CACHE_S:
                return
            before = time.monotonic()
            self.judge(self.attempt + self._next.is_file())
            self._looked = before

    def judge(self, latest: int) -> None:
        """The same, by the newest attempt that somebody else has looked up."""
        if latest > self.attempt:
            raise FencedError(f"a later attempt owns {self.run_uri} now; attempt {self.attempt} writes nothing more")
