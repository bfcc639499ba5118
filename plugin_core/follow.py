"""What an engine may show of a run while it goes on: decisions, journal, the job's log."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from plugin_core.decide import Action, Do
from plugin_core.errors import CLUSTER_ERRORS
from plugin_core.jobs import JobsClient
from plugin_core.journal import JournalReader
from plugin_core.observe import Look
from plugin_core.progress import Progress, Reading
from plugin_core.rundir import Position, RunDir
from plugin_core.sync import in_thread

#: The Jobs API sends all of a log each time: it is not read again for this many times as long as reading it took, nor
#: faster than so many characters a second.
LOG_PAUSE, LOG_CHARS_PER_S = 10.0, 20_000
#: The event loop of many runs is given back after so many lines.
LINES_AT_ONCE = 100
#: How often a reader's position is kept, in seconds: so much may be told again after a kill.
KEEP_S = 15.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Event:
    """Something an engine may show: kind "state" (a decision), "phase" and "report" (journal entries in `data`; a report
    with the reading of its progress), "link" (where a tracker shows the run: `data` has it by tracker) or "log" (lines
    of the job)."""

    kind: str
    text: str
    data: dict[str, Any] = field(default_factory=dict)
    reading: Reading = field(default_factory=Reading)


Listener = Callable[[Event], None]


class Follower:
    """Tells a listener what is new since the last time. Log and journal are read from a position, so a connection that
    breaks loses and repeats no line; and what the log says, or its end, never counts as news about the job.

    `reader`: an id under which the position is kept in the run directory, for a listener whose process may change (a task
    that moves to another triggerer): the next process goes on where this one was.
    """

    def __init__(self, rundir: RunDir, listener: Listener | None, reader: str = ""):
        self._listener = listener
        self._rundir = rundir
        self._reader = reader
        self._kept: Position | None = None
        self._keep_due = 0.0
        self._journal = JournalReader(rundir)
        self._progress: Progress | None = None
        self._said = ""
        self._linked: set[str] = set()
        self._log_seen: dict[str, int] = {}
        self._log_due = 0.0

    def tell(self, event: Event) -> None:
        """To the listener; one that fails misses an event, and the step goes on."""
        if self._listener is None:
            return
        try:
            self._listener(event)
        except Exception:
            logger.exception("a listener failed at: %s", event.text[:200])

    async def show(self, action: Action, look: Look, client: JobsClient | None) -> None:
        await self._take_up()
        await self._show(action, look, client)
        if time.monotonic() >= self._keep_due:
            await self.keep()

    async def keep(self) -> None:
        """Keep the position, where there is a reader and it moved."""
        position = self._position()
        if self._reader and self._kept not in (None, position):
            self._keep_due = time.monotonic() + KEEP_S
            await in_thread(self._rundir.keep_position, self._reader, position)
            self._kept = position  # only now: a cancel in between is followed by another `keep`

    async def _take_up(self) -> None:
        if self._reader and self._kept is None:
            self._kept = await in_thread(self._rundir.position, self._reader)
            self._journal.lines_seen.update(self._kept.journal)
            self._log_seen.update(self._kept.logs)

    def _position(self) -> Position:
        return Position(dict(self._journal.lines_seen), dict(self._log_seen))

    async def _show(self, action: Action, look: Look, client: JobsClient | None) -> None:
        receipt, job = look.receipt, look.job
        text = f"{action.do.value}: {action.why}"
        if text != self._said:
            self._said = text
            data = {"submission_id": receipt.submission_id, "attempt": receipt.attempt} if receipt else {}
            self.tell(Event("state", text, data))
        if receipt is None:
            return
        for segment in await in_thread(self._journal.unread):
            for number, entry in enumerate(await in_thread(self._journal.read_segment, segment)):
                if "report" in entry:
                    await self._show_report(entry)
                else:
                    self.tell(Event("phase", f"phase: {entry['phase']}", entry))
                if number % LINES_AT_ONCE == LINES_AT_ONCE - 1:
                    await asyncio.sleep(0)
        for tracker in look.links.keys() - self._linked:
            self._linked.add(tracker)
            link = look.links[tracker]
            self.tell(Event("link", f"tracking.{tracker}: {link}", {tracker: link}))
        if job is not None and client is not None:
            await self._show_log(client, receipt.submission_id, final=job.terminal or action.do is Do.RETURN)

    async def _show_report(self, entry: dict[str, Any]) -> None:
        if self._progress is None:
            record = await in_thread(self._rundir.read_record)
            spec = record["spec"]
            # a retraining's reports are those of its training
            self._progress = Progress(spec.get("train", spec).get("train_loop_config", {}))
        reading = self._progress.read(entry)
        text = f"report {entry['report']}: {_in_words(entry['metrics'])}"
        self.tell(Event("report", f"{text} ({reading})" if str(reading) else text, entry, reading))

    async def _show_log(self, client: JobsClient, submission_id: str, final: bool) -> None:
        began = time.monotonic()
        if began < self._log_due and not final:
            return
        try:
            log = await client.logs(submission_id)
        except CLUSTER_ERRORS:
            return  # read again from the same position when the cluster answers
        now = time.monotonic()
        self._log_due = now + max(LOG_PAUSE * (now - began), len(log) / LOG_CHARS_PER_S)
        start = self._log_seen.get(submission_id, 0)
        end = len(log) if final else log.rfind("\n") + 1
        if end > start:
            self._log_seen[submission_id] = end
            if text := log[start:end].rstrip("\n"):
                self.tell(Event("log", text))


def _in_words(metrics: dict[str, Any]) -> str:
    return " ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in metrics.items())
