"""Brings a run to its result: observe, decide, act, repeat. One asynchronous loop serves every engine.

Storage is accessed in threads and the cluster over aiohttp, so nothing blocks the event loop. The loop keeps no state that
matters: a later call for the same run continues from where it stands.
"""

from __future__ import annotations

import asyncio
import random
import shlex
import time
from collections.abc import Awaitable, Callable

from plugin_core.clusters import handover
from plugin_core.clusters.base import Cluster, LocalCluster
from plugin_core.clusters.jobs_api import ApiError, JobsClient
from plugin_core.clusters.secrets import RENEW_S
from plugin_core.driver.admission import AUTOSCALING
from plugin_core.errors import (
    CLUSTER_ERRORS,
    REFUSED,
    ClusterQueuedError,
    ClusterUnreachableError,
    InfrastructureError,
    SpecError,
    StepCancelledError,
    StorageError,
    from_outcome,
)
from plugin_core.runs.code import digest
from plugin_core.runs.directory import AttemptEnd, Receipt, RunDir
from plugin_core.specs import StepSpec
from plugin_core.specs.results import StepResult
from plugin_core.specs.sources import git_commit
from plugin_core.storage.threads import Threads, in_thread, run_sync
from plugin_core.storage.uris import allowed_here
from plugin_core.supervisor import timings
from plugin_core.supervisor.decide import TERMINAL, Action, Do, Job, decide
from plugin_core.supervisor.ending import see_off
from plugin_core.supervisor.events import Event, Line, Listener, Log
from plugin_core.supervisor.follower import Follower
from plugin_core.supervisor.interest import Interest
from plugin_core.supervisor.observer import Look, Observer
from plugin_core.supervisor.outcome import tell_failure, tell_outcome
from plugin_core.supervisor.preparation import prepare as prepare
from plugin_core.supervisor.preparation import release, tell_start
from plugin_core.supervisor.screen import Screen
from plugin_core.supervisor.uploads import tell_if_slow

#: Give up after this many submits in a row that the API answers with an error.
SUBMIT_ERRORS = 10
#: Environment variables of every job; the cluster and the spec override them. Ray Data draws progress bars for a terminal,
#: and in a task's log each redraw is a line (four of five lines, measured). The step reports its own progress.
JOB_VARIABLES = {"RAY_DATA_DISABLE_PROGRESS_BARS": "1"}
#: Seconds to wait for storage that cannot be read, after its client's own retries; the job continues meanwhile.
STORAGE_PATIENCE_S = 600.0


class Supervisor:
    """Brings one run to its end. `since_attempt`: attempts up to this one belong to earlier calls.

    An engine that moves a task between processes (an operator that defers to a trigger) passes `since_attempt` on, so that
    both count the same attempts as theirs. `log` gets the lines for people, `listener` the events. `reader`: see
    `Follower`. `wanted`: whether the engine still wants the run. It is called before replacing an attempt of this call that
    was cancelled elsewhere: the engine may have ended its task, and this process hears of that only a moment later.
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
        self.cluster = cluster = cluster.of_run(rundir.uri)
        self._metadata = metadata or {}
        self._threads = Threads.of(rundir.uri)
        self._observer = Observer(rundir, cluster, since_attempt)
        self._follower = Follower(rundir, listener, log, reader)
        self._tell = self._follower.tell
        self._submit_errors = 0
        self._interest = Interest(rundir, cluster, self._tell)
        self._handover_due = 0.0
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
        """Wait until the next look, less if the job ends meanwhile: a look asks storage, this only the cluster."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left, timings.JOB_EVERY_S))
            if left > timings.JOB_EVERY_S and await self._observer.job_has_changed():
                return

    async def submit(self) -> StepResult | None:
        """One look and one action, after which the run has an attempt or a result. For an operator that defers: who follows
        the run shows what happens in it."""
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
        await self._follower.show(action, look, self._observer.client)
        await self._interest.show(self._observer.limits)
        return await self._act(action, look)

    async def close(self) -> None:
        await self._observer.close()
        try:
            await self._follower.keep()
        except StorageError as exc:
            self._tell(Event("state", f"output shown so far may be repeated: {exc.message}"))

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
                await see_off(self.rundir, receipt, self.cluster, self._observer, self._follower)
                await release(self.cluster, True, self._tell)
                if result is not None and self._follower.listened:
                    await tell_outcome(self.rundir, result, self._tell)
                return result
            case Do.FAIL:
                over = (seen.job in TERMINAL or seen.job is Job.ABSENT) and not seen.superseded
                if action.outcome == "cancelled" and receipt is not None and seen.end is None and over:
                    await self._threads(self.rundir.record_end, receipt.attempt, AttemptEnd("cancelled", action.why))
                if seen.end is not None and seen.job is Job.UNREACHABLE and action.outcome != "cancelled":
                    await see_off(self.rundir, receipt, self.cluster, self._observer, self._follower)
                if not seen.superseded:
                    await release(self.cluster, False, self._tell)
                tell_failure(self.rundir, action.outcome, self._tell)
                raise from_outcome(action.outcome, action.why, action.details, action.cause)
            case Do.SUBMIT_NEXT:
                if seen.ours and seen.attempt_unwanted and self._wanted is not None and not await self._wanted():
                    return None  # the engine is about to end this call
                await self._submit(seen.attempt + 1, seen.gave_up_on_cluster)
            case Do.SUBMIT_SAME if receipt is not None:
                await self._start_job(receipt)
            case Do.WAIT if receipt and seen.job is Job.PENDING and time.monotonic() > self._handover_due:
                await self._keep_handed_over(receipt)
            case Do.STOP if receipt is not None:
                if seen.cancel_wanted and not seen.attempt_unwanted:
                    # claimed after the cancel: tell its driver too, in case this process dies now
                    await self._threads(self.rundir.cancel, receipt.attempt)
                await self._stop_job(receipt)
        return None

    async def _submit(self, attempt: int, gave_up_on_cluster: bool) -> None:
        last = await self._threads(self.rundir.latest)
        if last >= attempt:
            return  # another process was faster; the next look finds its attempt
        try:
            if self._observer.client is None and not self._interest.waits_for:
                await tell_start(self.cluster, self._tell)
            client = await self._observer.connect()
            incarnation = (await client.version()).get("session_name", "")
            self._interest.waits_for = ""
        except ClusterQueuedError as exc:
            self._interest.waits(exc.message)
            return
        except CLUSTER_ERRORS as exc:
            if attempt == 1 or gave_up_on_cluster:
                raise  # nothing was started: the engine may retry, also on another cluster
            self._tell(Event("state", f"attempt {attempt} is waiting for the cluster: {exc.message}"))
            await self.close()
            return
        spec = await self._threads(self.rundir.read_spec)
        try:
            # before the claim: a failed upload must not leave an attempt behind
            sending = client.upload(spec.runtime_env)
            uploaded = await tell_if_slow(sending, "the code to the cluster", self._tell, lambda: client.uploaded)
        except ClusterUnreachableError as exc:
            self._not_submitted(f"attempt {attempt} is waiting for its upload", exc)
            return
        claim = self.rundir.claim
        receipt = await self._threads(claim, attempt, client.address, incarnation, self.cluster.identity)
        if receipt is not None:
            self._observer.attempt = attempt
            await self._start_job(receipt, spec.model_copy(update={"runtime_env": uploaded}))

    async def _start_job(self, receipt: Receipt, spec: StepSpec | None = None) -> None:
        """`spec`: the run's spec with its folders uploaded, right after the claim; None if it may be submitted already."""
        first_time = spec is not None
        if spec is None:
            spec = await self._threads(self.rundir.read_spec)
        own = {"run": self.rundir.uri, "name": self.rundir.name, "attempt": str(receipt.attempt)}
        commit = await in_thread(git_commit) if spec.tracking else {}
        metadata = {**self._metadata, **commit, **own}
        try:
            client = await self._observer.connect()
            code = await self._threads(digest, self.rundir)
            # Ray passes the entrypoint to a shell. `exec`: the process that Ray sees end, with its exit code, is the driver
            words = ["exec", *self.cluster.driver_command(), self.rundir.uri, str(receipt.attempt), receipt.nonce, code]
            handed = await self._hand_over(client, receipt, spec)
            growing = {AUTOSCALING: "1"} if self.cluster.autoscaling else {}
            variables = {**JOB_VARIABLES, **growing, **allowed_here(), **handed}
            runtime_env = spec.with_runtime_env({"env_vars": variables}).runtime_env
            await client.submit(receipt.submission_id, shlex.join(words), await client.upload(runtime_env), metadata)
        except ClusterUnreachableError as exc:
            # whether it arrived is unknown; the next look checks, and the same id cannot become two jobs
            self._not_submitted(f"no answer to the submit of {receipt.submission_id}", exc)
        except SpecError as exc:
            if first_time:  # so this attempt will never have a job
                await self._threads(self.rundir.record_end, receipt.attempt, AttemptEnd(REFUSED, exc.message))
            raise
        else:
            from plugin_core.clusters import local_head

            self._submit_errors = 0
            told = {"submission_id": receipt.submission_id, "attempt": receipt.attempt}
            page = local_head.how_to_open(receipt.cluster, self.rundir.uri)
            said = f"attempt {receipt.attempt} is job {receipt.submission_id}{page and f'; {page}'}"
            self._tell(Event("state", said, told))

    async def _hand_over(self, client: JobsClient, receipt: Receipt, spec: StepSpec) -> dict[str, str]:
        self._handover_due = time.monotonic() + RENEW_S
        own = spec.runtime_env.get("env_vars", {})  # the spec wins
        return await handover.hand_over(client, self.cluster, receipt.submission_id, without=own)

    async def _keep_handed_over(self, receipt: Receipt) -> None:
        """Renew the variables of a pending job, which has not taken them yet; Ray keeps them for only a few minutes."""
        try:
            client = await self._observer.connect()
            await self._hand_over(client, receipt, await self._threads(self.rundir.read_spec))
        except CLUSTER_ERRORS as exc:
            self._tell(Event("state", f"could not renew the variables of {receipt.submission_id}: {exc.message}"))

    def _not_submitted(self, what: str, exc: ClusterUnreachableError) -> None:
        self._tell(Event("state", f"{what}: {exc.message}"))
        self._submit_errors += isinstance(exc, ApiError)
        if self._submit_errors >= SUBMIT_ERRORS:
            raise InfrastructureError(f"the cluster answers, but accepts no job: {exc.message}") from exc

    async def _stop_job(self, receipt: Receipt) -> None:
        try:
            await (await self._observer.connect()).stop(receipt.submission_id)
        except CLUSTER_ERRORS as exc:
            self._tell(Event("state", f"no answer to the stop of {receipt.submission_id}: {exc.message}"))


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


def cancel(rundir: RunDir, cluster: Cluster) -> str:
    """`acancel` up to the newest attempt, for an engine's task that gives up: later attempts are not its own."""
    return run_sync(acancel(rundir, cluster, rundir.latest() or None))


async def acancel(rundir: RunDir, cluster: Cluster, attempt: int | None = None) -> str:
    """Cancel a run: record the cancel for its driver, stop its job, wait until its processes are gone. Safe to repeat.

    `attempt`: the newest attempt the caller knows of; later ones belong to other callers and continue. None: all attempts.
    Returns "cancelled", or "finished" if the run already had its result.
    """
    if await Threads.of(rundir.uri)(rundir.result) is not None:
        return "finished"
    return await Supervisor(rundir, cluster, since_attempt=0).cancel(attempt)


__all__ = ["Event", "Line", "Listener", "Log", "Supervisor", "acancel", "arun", "cancel", "prepare", "run", "run_sync"]
