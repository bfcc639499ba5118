"""Shows a run's progress to an engine: decisions, phases, journal entries, the job's log."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from dataclasses import replace
from typing import Any

from plugin_core.clusters.jobs_api import JobInfo, JobsClient
from plugin_core.errors import CLUSTER_ERRORS
from plugin_core.errors.plain_text import plain
from plugin_core.runs.directory import Phase, Position, Receipt, RunDir
from plugin_core.runs.journal import JournalReader
from plugin_core.specs.json_values import is_time
from plugin_core.storage.threads import Threads
from plugin_core.supervisor.decide import LIVE, Action, Do, Job
from plugin_core.supervisor.events import Event, Listener, Log
from plugin_core.supervisor.job_log import JobLog, pieces
from plugin_core.supervisor.kept_rest import rest_of
from plugin_core.supervisor.observer import Look
from plugin_core.supervisor.progress import Progress
from plugin_core.supervisor.story import Story, is_bad, phase_in_words, report_in_words

#: Yield to the event loop, which many runs share, after this many lines.
LINES_AT_ONCE = 100
#: Seconds between two saves of a reader's position; after a kill, output from up to this long ago may be repeated.
KEEP_S = 15.0

logger = logging.getLogger(__name__)


class Follower:
    """Tells a listener what is new since the last call, and a log the same as lines. Log and journal are read from a saved
    position, so a broken connection neither loses nor repeats a line. The log's content, or its end, never counts as
    evidence of the job's state.

    `reader`: an id under which the position is saved in the run directory, for a listener whose process may change (a task
    that moves to another triggerer): the next process continues from there.
    """

    def __init__(self, rundir: RunDir, listener: Listener | None, log: Log | None = None, reader: str = ""):
        story = Story(log) if log is not None else None
        self._story = story
        self._listeners = [told for told in (listener, story) if told is not None]
        self._rundir = rundir
        self._threads = Threads.of(rundir.uri)
        #: if false, only decisions and the outcome are shown
        self.shows_progress = True
        self._reader = reader
        self._kept: Position | None = None
        self._keep_due = 0.0
        self._journal = JournalReader(rundir)
        self._progress: Progress | None = None
        self._said = ""
        self._follows = bool(reader)
        self._linked: set[str] = set()
        self._phases: dict[str, int] = {}
        self._driver: tuple[int, list[Phase]] = (0, [])
        self._log_seen: dict[str, int] = {}
        self._log: JobLog | None = None

    @property
    def follows(self) -> bool:
        """Whether the listener saw the run active and wants it to the end; false if its result already existed."""
        return self.listened and self._follows

    @property
    def listened(self) -> bool:
        return bool(self._listeners)

    def tell(self, event: Event) -> None:
        """Pass an event on. If a listener raises, it misses that event and the step continues."""
        event = replace(event, text=plain(event.text))
        for listener in self._listeners:
            try:
                listener(event)
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
            self._phases.update(self._kept.phases)

    def _position(self) -> Position:
        return Position(self._journal.position, dict(self._log_seen), dict(self._phases))

    async def _show(self, action: Action, look: Look, client: JobsClient | None) -> None:
        if action.do not in (Do.RETURN, Do.FAIL):
            self._tell_decision(action, look)
        await self._show_progress(action, look, client)
        if action.do is Do.FAIL:  # after everything that led to it; a result is put into words once everything is shown
            self._tell_decision(action, look)
        if self._story is not None:
            self._story.pause()

    def _tell_decision(self, action: Action, look: Look) -> None:
        receipt, newest = look.receipt, look.seen.attempt
        text = action.why
        if not (action.do is Do.WAIT and look.seen.job in LIVE):  # a job that does its work is not waited for
            what = action.do.value.format(newest=newest, next=newest + 1)
            text = f"{what}: {text}" if text else what
        if text != self._said:
            self._said = text
            data = {"submission_id": receipt.submission_id, "attempt": receipt.attempt} if receipt else {}
            self.tell(Event("state", text, data, level=logging.ERROR if action.do is Do.FAIL else logging.INFO))

    async def _show_progress(self, action: Action, look: Look, client: JobsClient | None) -> None:
        receipt, job = look.receipt, look.job
        if receipt is None or not self.shows_progress:
            return
        self._follows = True
        self._driver = receipt.attempt, look.phases
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
                self._show_phases(before=_when(entry.get("time", 0.0)))
                if "report" in entry:
                    await self._show_report(entry)
                else:
                    if "why" in entry and self._progress is not None:
                        self._progress.restart()
                    level = logging.WARNING if is_bad(entry) else logging.INFO
                    self.tell(Event("phase", phase_in_words(entry), entry, time=_when(entry.get("time", 0.0)), level=level))
                if number % LINES_AT_ONCE == LINES_AT_ONCE - 1:
                    await asyncio.sleep(0)
        self._show_phases()

    def _show_phases(self, before: float = math.inf) -> None:
        """Show the driver's phases that began before the next entry of the journal, which others write."""
        attempt, phases = self._driver
        for phase in phases[self._phases.get(str(attempt), 0) :]:
            if phase.time > before:
                return
            self._phases[str(attempt)] = self._phases.get(str(attempt), 0) + 1
            if not phase.shown:
                continue
            self.tell(Event("phase", phase.phase, {"phase": phase.phase, "attempt": attempt}, time=_when(phase.time)))

    async def _show_report(self, entry: dict[str, Any]) -> None:
        if self._progress is None:
            record = await self._threads(self._rundir.read_record)
            spec = record["spec"]
            # a retraining relays its training's reports
            self._progress = Progress(spec.get("train", spec).get("train_loop_config", {}))
        reading = self._progress.read(entry)
        self.tell(Event("report", report_in_words(entry, reading), entry, reading, _when(entry.get("time", 0.0))))

    async def show_log(self, client: JobsClient, job: JobInfo, final: bool) -> None:
        """Show what is new in a job's log; with `final`, also an incomplete last line. Raises one of CLUSTER_ERRORS; the
        next call then resumes from the same position."""
        if not self.listened or not self.shows_progress:
            return
        if self._log is None or self._log.submission_id != job.submission_id:
            self._log = JobLog(job.submission_id, self._log_seen.get(job.submission_id, 0))
        async for piece in self._log.read(client, job, final):
            self._log_seen[job.submission_id] = self._log.position
            if text := piece.rstrip("\n"):
                self.tell(Event("log", text))
            await asyncio.sleep(0)

    async def show_kept_log(self, receipt: Receipt, why: str) -> bool:
        """Show the rest of a job's log from the run directory, as its cluster cannot; false if nothing is kept."""
        if not self.listened or not self.shows_progress:
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


def _when(told: float) -> float:
    """When something happened; now, if a file has no plausible time."""
    return told if is_time(told) else time.time()
