"""Passes reports one by one from the controller of a trial's training to the trial, which passes them to Ray Tune.

A report blocks, and with it the training's workers, until Ray Tune wants the next one, as in Ray Tune itself. So a trial
that is paused, or stopped early, has not run ahead and resumes exactly where it was.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

#: Keys of a trial's results besides the metrics: its leg's name, and the number of reports so far.
LEG, REPORTS = "leg", "reports"

#: What a trial gets instead of a report once the search is over.
STOPPED = {"stopped": True}

logger = logging.getLogger(__name__)


class _Channel:
    def __init__(self) -> None:
        self.entry: dict[str, Any] | None = None
        self.arrived = asyncio.Event()
        self.wanted = asyncio.Event()


class Mailbox:
    """An actor without resources, one per search. Each leg (see `trial`) has its own channel. Calls are idempotent: after a
    restart of the actor both sides repeat the call they were waiting in."""

    def __init__(self) -> None:
        self._channels: dict[str, _Channel] = {}
        self._stopped = False

    async def stop(self) -> None:
        """The search is over: no trial waits for a report any more, which would keep it from ending its trackers."""
        self._stopped = True
        for channel in self._channels.values():
            channel.arrived.set()

    async def report(self, leg: str, entry: dict[str, Any]) -> None:
        """Deliver a report; return when the next one is wanted."""
        channel = self._channels.setdefault(leg, _Channel())
        channel.entry = entry
        channel.wanted.clear()
        channel.arrived.set()
        await channel.wanted.wait()

    async def next(self, leg: str) -> dict[str, Any] | None:
        """Return the next report; None once the training is over."""
        channel = self._channels.setdefault(leg, _Channel())
        if not self._stopped:
            channel.wanted.set()
            await channel.arrived.wait()
        if self._stopped:
            return STOPPED
        channel.arrived.clear()
        return channel.entry

    async def begin(self, leg: str) -> None:
        """Drop reports of an earlier, killed training of the leg."""
        self._channels[leg] = _Channel()

    async def end(self, leg: str) -> None:
        """Signal that the training is over."""
        channel = self._channels.setdefault(leg, _Channel())
        channel.entry = None
        channel.arrived.set()


def make() -> Any:
    """Create a search's mailbox actor."""
    import ray

    options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "max_concurrency": 1000}
    return ray.remote(Mailbox).options(**options).remote()


class Sender:
    """Sends the controller's reports to the mailbox. Never raises, since that would end the training."""

    def __init__(self, mailbox: Any, leg: str):
        self._mailbox = mailbox
        self._leg = leg

    def __call__(self, entry: dict[str, Any]) -> None:
        import ray

        try:
            ray.get(self._mailbox.report.remote(self._leg, entry))
        except Exception:
            logger.exception("the search is missing report %s", entry.get("report"))
