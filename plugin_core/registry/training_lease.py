"""A lease on a model, so that two retrainings of it do not train at once.

    <registry>/NAME/leases/000001.json            the holder, a run (created if absent; the highest one counts)
    <registry>/NAME/leases/000001.over.json       released

A holder is a run, and its heartbeat shows that it is alive. A killed run releases nothing; a waiter takes the lease over
once the heartbeat has been silent for the TTL, measured by the waiter's own clock. The lease only saves work; the registry
itself protects the alias.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from typing_extensions import TypedDict

from plugin_core.errors import LeaseHeldError
from plugin_core.runs.directory import Heartbeat, RunDir
from plugin_core.storage.location import Location, numbered
from plugin_core.storage.stored_files import parse


class _Holder(TypedDict):
    holder: str


#: Seconds between two checks of a lease that another run holds.
POLL_S = 2.0


class Lease:
    """The lease of the model whose leases are under `place`, for the run `holder` (a URI)."""

    def __init__(self, place: Location, holder: str):
        self._place = place
        self._holder = holder
        self._number = 0

    def acquire(self, ttl_s: float, wait: bool, on_wait: Callable[[str], None]) -> None:
        """Take the lease, or keep it if already held. `ttl_s`: seconds of silent heartbeat after which a holder is dead.

        Raises LeaseHeldError if another run holds it and `wait` is false. `on_wait` is called with the holder's URI.
        """
        seen: tuple[int, Heartbeat | None, float] | None = None
        while True:
            number, holder = self._current()
            if holder == self._holder:
                self._number = number
                return
            if holder is not None and not _is_over(holder):
                beat, now = _heartbeat(holder), time.monotonic()
                if seen is None or seen[:2] != (number, beat):
                    seen = (number, beat, now)
                    if not wait:
                        raise LeaseHeldError(f"the model is being retrained by {holder}")
                    on_wait(holder)
                if now - seen[2] < ttl_s:
                    time.sleep(POLL_S)
                    continue
            if self._file(number + 1).create(json.dumps({"holder": self._holder}).encode()):
                self._number = number + 1
                return

    def release(self) -> None:
        """Release the lease; harmless if another run has taken it over."""
        if self._number:
            self._place.child(f"{self._number:06}.over.json").create(b"{}")

    def _current(self) -> tuple[int, str | None]:
        """Return the newest lease's number and its holder (None: nobody)."""
        names = self._place.names()
        number = (numbered(names) or [0])[-1]
        if not number:
            return 0, None
        if f"{number:06}.over.json" in names:
            return number, None
        data = self._file(number).read()
        return number, parse(_Holder, data, self._file(number).uri)["holder"] if data else None

    def _file(self, number: int) -> Location:
        return self._place.child(f"{number:06}.json")


def _is_over(holder: str) -> bool:
    """Whether the run has a result. A failed run may be retried, so only its silent heartbeat counts."""
    return RunDir.at(holder).result() is not None


def _heartbeat(holder: str) -> Heartbeat | None:
    rundir = RunDir.at(holder)
    return rundir.heartbeat(rundir.latest())
