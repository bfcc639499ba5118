"""Shows a run's progress to an engine: decisions, journal entries, the job's log."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from plugin_core.clusters.jobs_api import JobInfo, JobsClient
from plugin_core.errors import CLUSTER_ERRORS
from plugin_core.errors.plain_text import plain
from plugin_core.runs.directory import Position, Receipt, RunDir
from plugin_core.runs.journal import JournalReader
from plugin_core.storage.threads import Threads
from plugin_core.supervisor.decide import Action, Do, Job
from plugin_core.supervisor.job_log import JobLog, pieces
from plugin_core.supervisor.kept_rest import rest_of
from plugin_core.supervisor.observer import Look
from plugin_core.supervisor.progress import Progress, Reading

#: Yield to the event loop, which many runs share, after this many lines.
LINES_AT_ONCE = 100
#: Seconds between two saves of a reader's position; after a kill, output from up to this long ago may be repeated.
KEEP_S = 15.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Event:
    """Something an engine can show. Kinds: "state" (a decision), "phase" and "report" (journal entry in `data`; a report
    also has its progress `reading`), "link" (the run's page at a tracker; `data` maps tracker to URL) and "log" (lines of
    the job's log)."""

    kind: str
    text: str
    data: dict[str, Any] = field(default_factory=dict)
    reading: Reading = field(default_factory=Reading)


Listener = Callable[[Event], None]


class Follower:
    """Tells a listener what is new since the last call. Log and journal are read from a saved position, so a broken
    connection loses and repeats no line. The log's content, or its end, never counts as evidence of the job's state.

    `reader`: an id under which the position is saved in the run directory, for a listener whose process may change (a task
    that moves to another triggerer): the next process continues from there.
    """

    def __init__(self, rundir: RunDir, listener: Listener | None, reader: str = ""):
        self._listener = listener
        self._rundir = rundir
        self._threads = Threads.of(rundir.uri)
        self._reader = reader
        self._kept: Position | None = None
        self._keep_due = 0.0
        self._journal = JournalReader(rundir)
        self._progress: Progress | None = None
        self._said = ""
        self._follows = bool(reader)
        self._linked: set[str] = set()
        self._log_seen: dict[str, int] = {}
        self._log: JobLog | None = None

    @property
    def follows(self) -> bool:
        """Whether the listener saw the run active and wants it to the end; false if its result already existed."""
        return self._listener is not None and self._follows

    def tell(self, event: Event) -> None:
        """Pass an event to the listener. If the listener raises, it misses that event and the step continues."""
        if self._listener is None:
            return
        try:
            self._listener(replace(event, text=plain(event.text)))
        except Exception:
            logger.exception("a listener failed on: %s", event.text[:200])

    async def show(self, action: Action, look: Look, client: JobsClient | None) -> None:
        await self._take_up()
        await self._show(action, look, client)
        if time.monotonic() >= self._keep_due:
            await self.keep()

    async def keep(self) -> None:
        """Save the position, if there is a reader and the position moved."""
        position = self._position()
        if self._reader and self._kept not in (None, position):
            self._keep_due = time.monotonic() + KEEP_S
            await self._threads(self._rundir.keep_position, self._reader, position)
            self._kept = position  # set last: if this call is cancelled before, `keep` is called again

    async def _take_up(self) -> None:
        if self._reader and self._kept is None:
            self._kept = await self._threads(self._rundir.position, self._reader)
            self._journal.go_to(self._kept.journal)
            self._log_seen.update(self._kept.logs)

    def _position(self) -> Position:
        return Position(self._journal.position, dict(self._log_seen))

    async def _show(self, action: Action, look: Look, client: JobsClient | None) -> None:
        receipt, job = look.receipt, look.job
        newest = look.seen.attempt
        text = f"{action.do.value.format(newest=newest, next=newest + 1)}: {action.why}"
        if text != self._said:
            self._said = text
            data = {"submission_id": receipt.submission_id, "attempt": receipt.attempt} if receipt else {}
            self.tell(Event("state", text, data))
        if receipt is None:
            return
        self._follows = True
        # at the end, show everything, including what follows a deleted segment
        await self._show_journal(receipt.attempt if action.do is Do.WAIT else 0)
        for tracker in look.links.keys() - self._linked:
            self._linked.add(tracker)
            link = look.links[tracker]
            self.tell(Event("link", f"tracking.{tracker}: {link}", {tracker: link}))
        if job is not None and client is not None and action.do is not Do.RETURN:
            try:
                await self.show_log(client, job, final=job.terminal)
            except CLUSTER_ERRORS:
                return  # retried from the same position when the cluster answers
        elif job is None and action.do in (Do.SUBMIT_NEXT, Do.FAIL) and look.seen.ours:
            may_come_back = look.seen.job is Job.UNREACHABLE and look.seen.end is not None  # see `see_off`
            if not may_come_back:
                await self.show_kept_log(receipt, "its cluster can show no more of it")

    async def show_rest(self) -> None:
        """Show the journal to its end. It is on storage, so no cluster is needed."""
        await self._take_up()
        await self._show_journal(0)

    async def _show_journal(self, attempt: int) -> None:
        self._journal.attempt = attempt
        while await self._threads(self._journal.fetch):
            for number, entry in enumerate(self._journal.entries()):
                if "report" in entry:
                    await self._show_report(entry)
                else:
                    self.tell(Event("phase", f"phase: {entry['phase']}", entry))
                if number % LINES_AT_ONCE == LINES_AT_ONCE - 1:
                    await asyncio.sleep(0)

    async def _show_report(self, entry: dict[str, Any]) -> None:
        if self._progress is None:
            record = await self._threads(self._rundir.read_record)
            spec = record["spec"]
            # a retraining relays its training's reports
            self._progress = Progress(spec.get("train", spec).get("train_loop_config", {}))
        reading = self._progress.read(entry)
        text = f"report {entry['report']}: {_in_words(entry['metrics'])}"
        self.tell(Event("report", f"{text} ({reading})" if str(reading) else text, entry, reading))

    async def show_log(self, client: JobsClient, job: JobInfo, final: bool) -> None:
        """Show what is new in a job's log; with `final`, also an incomplete last line. Raises one of CLUSTER_ERRORS; the
        next call then resumes from the same position."""
        if self._listener is None:
            return
        if self._log is None or self._log.submission_id != job.submission_id:
            self._log = JobLog(job.submission_id, self._log_seen.get(job.submission_id, 0))
        async for piece in self._log.read(client, job, final):
            self._log_seen[job.submission_id] = self._log.position
            if text := piece.rstrip("\n"):
                self.tell(Event("log", text))
            await asyncio.sleep(0)

    async def show_kept_log(self, receipt: Receipt, why: str) -> bool:
        """Show the rest of a job's log from the run directory, as its cluster cannot; false if nothing is kept there."""
        if self._listener is None:
            return False
        await self._take_up()
        job = receipt.submission_id
        kept = await rest_of(self._rundir, receipt.attempt, self._log_seen.get(job, 0))
        if kept is None:
            return False
        if kept.text:
            self.tell(Event("state", f"the rest of the log of {job} is from the run directory: {why}"))
        for piece in pieces(kept.text):
            if text := piece.rstrip("\n"):
                self.tell(Event("log", text))
            await asyncio.sleep(0)
        self._log_seen[job] = kept.position
        if self._log is not None:
            self._log.close()
            self._log = None  # if the cluster comes back, its log is read from there on
        return True


def _in_words(metrics: dict[str, Any]) -> str:
    return " ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in metrics.items())
