"""Between the controller of a trial's training, which reports, and the trial, which tells Ray Tune: report by report.

A report waits until Ray Tune wants the next one, and with it the training's workers, as they do in Ray Tune itself. So a
trial that is paused, or stopped for being bad, has not run ahead, and goes on exactly where it was.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

logger = logging.getLogger(__name__)


class _Channel:
    def __init__(self) -> None:
        self.entry: dict[str, Any] | None = None
        self.arrived = asyncio.Event()
        self.wanted = asyncio.Event()


class Mailbox:
    """An actor without resources, one a search. A leg (see `trial`) has a channel of its own. Calls may be
    repeated: after a restart of the actor both sides say again what they wait for."""

    def __init__(self) -> None:
        self._channels: dict[str, _Channel] = {}

    async def report(self, leg: str, entry: dict[str, Any]) -> None:
        """Hand a report over; returns when the one after it is wanted."""
        channel = self._channels.setdefault(leg, _Channel())
        channel.entry = entry
        channel.wanted.clear()
        channel.arrived.set()
        await channel.wanted.wait()

    async def next(self, leg: str) -> dict[str, Any] | None:
        """The next report; None when the training is over."""
        channel = self._channels.setdefault(leg, _Channel())
        channel.wanted.set()
        await channel.arrived.wait()
        channel.arrived.clear()
        return channel.entry

    async def begin(self, leg: str) -> None:
        """Forget what an earlier, killed training of the leg had to say."""
        self._channels[leg] = _Channel()

    async def end(self, leg: str) -> None:
        """The training is over."""
        channel = self._channels.setdefault(leg, _Channel())
        channel.entry = None
        channel.arrived.set()


def make() -> Any:
    """A mailbox for a search, on the driver's node."""
    import ray

    options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "max_concurrency": 1000}
    return ray.remote(Mailbox).options(**options).remote()


class Sender:
    """What the controller is given: hands its reports to the mailbox. It never raises, since that would end the
    training."""

    def __init__(self, mailbox: Any, leg: str):
        self._mailbox = mailbox
        self._leg = leg

    def __call__(self, entry: dict[str, Any]) -> None:
        import ray

        try:
            ray.get(self._mailbox.report.remote(self._leg, entry))
        except Exception:
            logger.exception("the search misses report %s", entry.get("report"))
