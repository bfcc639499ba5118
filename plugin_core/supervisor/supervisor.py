"""Brings a run to its result: observe, decide, act, repeat. One asynchronous loop serves every engine.

Storage is accessed in threads and the cluster over aiohttp, so nothing blocks the event loop. The loop keeps no state that
matters: a later call for the same run continues from where it stands.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

from plugin_core.clusters.base import Cluster, LocalCluster
from plugin_core.errors import StepCancelledError, StorageError, from_outcome
from plugin_core.errors.redaction import redacted
from plugin_core.runs.directory import AttemptEnd, RunDir
from plugin_core.specs import StepSpec
from plugin_core.specs.results import StepResult
from plugin_core.storage.threads import Threads, run_sync
from plugin_core.supervisor import timings
from plugin_core.supervisor.decide import TERMINAL, Action, Do, Job, decide, is_over
from plugin_core.supervisor.ending import see_off
from plugin_core.supervisor.events import Event, Line, Listener, Log
from plugin_core.supervisor.follower import Follower
from plugin_core.supervisor.interest import Interest
from plugin_core.supervisor.observer import Look, Observer
from plugin_core.supervisor.outcome import tell_failure, tell_outcome
from plugin_core.supervisor.preparation import prepare as prepare
from plugin_core.supervisor.screen import Screen
from plugin_core.supervisor.submitter import Submitter

#: Seconds to wait for storage that cannot be read, after its client's own retries; the job continues meanwhile.
STORAGE_PATIENCE_S = 600.0


class Supervisor:
    """Brings one run to its end. `since_attempt`: attempts up to this one belong to earlier calls.

    An engine that moves a task between processes (an operator that defers to a trigger) passes `since_attempt` on, so that
    both count the same attempts as theirs. `log` gets the lines for people, `listener` the events. `reader`: see
    `Follower`. `wanted`: whether the engine still wants the run. It is called before and after each claim: the engine may
    have ended its task, and this process hears of that only a moment later.
    """

    def __init__(
        self,
        rundir: RunDir,
        cluster: Cluster,
        *,
        since_attempt: int | None = None,
        listener: Listener | None = None,
        log: Log | None = None,
        metadata: dict[str, str] | None = None,
        reader: str = "",
        wanted: Callable[[], Awaitable[bool]] | None = None,
    ):
        self.rundir = rundir
        self._wanted = wanted
        self.cluster = cluster
        self._threads = Threads.of(rundir.uri)
        self._observer = Observer(rundir, cluster, since_attempt)
        self._where = self._observer.where
        self._follower = Follower(rundir, listener, log, reader)
        self._tell = self._follower.tell
        self._interest = Interest(rundir, self._where, self._tell)
        self._submitter = Submitter(rundir, self._where, self._interest, self._tell, metadata or {})
        self._storage_away_since: float | None = None

    @property
    def since_attempt(self) -> int | None:
        return self._observer.since_attempt

    @property
    def attempt(self) -> int:
        """The newest attempt this call has seen; 0 if none."""
        return self._observer.attempt

    async def run(self) -> StepResult:
        """Run until there is a result. Raises StepError, SpecError, ClusterUnreachableError or StorageError."""
        try:
            pause = timings.POLL_FIRST_S
            while True:
                began = time.monotonic()
                result = await self._patient_step()
                if result is not None:
                    return result
                # subtract the time the look took; the jitter keeps many runs from polling in step
                took = time.monotonic() - began
                await self._pause(max(timings.POLL_FIRST_S, pause * random.uniform(0.9, 1.1) - took))
                pause = min(pause * 1.2, timings.POLL_MAX_S)
        finally:
            await self.close()

    async def _pause(self, seconds: float) -> None:
        """Wait until the next look, or less if the job ends: a look reads storage, this asks only the cluster."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left, timings.JOB_EVERY_S))
            if left > timings.JOB_EVERY_S and await self._observer.job_has_changed():
                return

    async def submit(self) -> StepResult | None:
        """One look and one action, after which the run has an attempt or a result. For an operator that defers: whoever
        follows the run shows its progress."""
        self._follower.shows_progress = False
        try:
            return await self.step()
        finally:
            self._follower.shows_progress = True
            await self.close()

    def give_up(self) -> None:
        """Give up the run: the next look stops the job, and StepCancelledError is raised."""
        self._observer.giving_up = True

    async def cancel(self, attempt: int | None = None) -> str:
        """Cancel the run (or its attempts up to `attempt`); see `acancel`."""
        await self._threads(self.rundir.cancel, attempt)
        self._observer.attempt = attempt or 0
        self.give_up()
        try:
            while True:
                if await self._patient_step() is not None:
                    return "finished"
                await asyncio.sleep(timings.POLL_FIRST_S)
        except StepCancelledError:
            return "cancelled"
        finally:
            await self.close()

    async def step(self) -> StepResult | None:
        """One look and one action."""
        look = await self._observer.look()
        action = decide(look.seen)
        await self._follower.show(action, look, self._where.client)
        await self._interest.show(self._observer.limits)
        return await self._act(action, look)

    async def close(self) -> None:
        await self._where.close()
        try:
            await self._follower.keep()
        except StorageError as exc:
            self._tell(Event("state", f"output shown so far may be repeated: {exc.message}"))

    async def _find_newest(self) -> None:
        """Go where the run was last, so that its cluster is released: a look that finds a result asks no cluster."""
        if self._where.is_choice:
            receipt = await self._threads(self.rundir.receipt, await self._threads(self.rundir.latest))
            if receipt is not None:
                await self._where.find(receipt.cluster)

    async def _called_off(self) -> bool:
        """Whether this call was cancelled, or its engine has ended it."""
        return await self._observer.called_off() or (self._wanted is not None and not await self._wanted())

    async def _patient_step(self) -> StepResult | None:
        try:
            result = await self.step()
        except StorageError as exc:
            now = time.monotonic()
            self._storage_away_since = self._storage_away_since or now
            if now - self._storage_away_since > STORAGE_PATIENCE_S:
                raise
            self._tell(Event("state", f"waiting: {exc.message}"))
            return None
        self._storage_away_since = None
        return result

    async def _act(self, action: Action, look: Look) -> StepResult | None:
        receipt, seen = look.receipt, look.seen
        match action.do:
            case Do.RETURN:
                result = await self._threads(self.rundir.result)
                await self._find_newest()
                await see_off(self.rundir, receipt, self._observer, self._follower)
                await self._where.release(True, self._tell)
                if result is not None and self._follower.listened:
                    await tell_outcome(self.rundir, result, self._tell)
                return result
            case Do.FAIL:
                stopped = action.outcome == "cancelled" and (seen.job in TERMINAL or seen.job is Job.ABSENT)
                over = (stopped or is_over(seen)) and not seen.superseded
                if receipt is not None and seen.end is None and over:
                    # it can no longer say how it ended, and without an end every later call would fail over it again
                    end = AttemptEnd(action.outcome, redacted(action.why), redacted(action.details), cause=action.cause)
                    await self._threads(self.rundir.record_end, receipt.attempt, end)
                if seen.end is not None and seen.job is Job.UNREACHABLE and action.outcome != "cancelled":
                    await see_off(self.rundir, receipt, self._observer, self._follower)
                if not seen.superseded:
                    await self._where.release(False, self._tell)
                tell_failure(self.rundir, action.outcome, self._tell)
                raise from_outcome(action.outcome, action.why, action.details, action.cause)
            case Do.SUBMIT_NEXT:
                if seen.ours and seen.attempt_unwanted and self._wanted is not None and not await self._wanted():
                    return None  # the engine is about to end this call
                if action.moves_on:
                    await self._where.move_on_from_here(self._tell)
                gave_up = seen.gave_up_on_cluster and not action.moves_on
                claimed = await self._submitter.begin(seen.attempt + 1, gave_up, self._called_off)
                self._observer.attempt = claimed or self._observer.attempt
            case Do.SUBMIT_SAME if receipt is not None:
                await self._submitter.start_job(receipt)
            case Do.WAIT if receipt and seen.job is Job.PENDING:
                await self._submitter.keep_handed_over(receipt)
            case Do.STOP if receipt is not None:
                if seen.cancel_wanted and not seen.attempt_unwanted:
                    # claimed after the cancel: tell its driver too, in case this process dies now
                    await self._threads(self.rundir.cancel, receipt.attempt)
                await self._submitter.stop_job(receipt)
        return None


async def arun(
    spec: StepSpec, cluster: Cluster | None = None, listener: Listener | None = None, progress: bool = True
) -> StepResult:
    """Run a step to its result on `cluster` (default: the embedded local one).

    `progress`: show on standard error what happens: lines, and in a terminal a bar below them. `listener` is called with
    each event.
    """
    where: Cluster = cluster or LocalCluster()
    with Screen(progress, listener) as screen:
        rundir = await prepare(spec, where, log=screen.log)
        return await Supervisor(rundir, where, listener=screen.listener, log=screen.log).run()


def run(
    spec: StepSpec, cluster: Cluster | None = None, listener: Listener | None = None, progress: bool = True
) -> StepResult:
    """`arun` for code without an event loop. The run survives this process; call again to reattach."""
    return run_sync(arun(spec, cluster, listener, progress))


__all__ = ["Event", "Line", "Listener", "Log", "Supervisor", "arun", "prepare", "run", "run_sync"]
