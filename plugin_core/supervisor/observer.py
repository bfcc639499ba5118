"""Observes a run's directory and job: the facts that `decide` judges."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from plugin_core.clusters.base import Cluster
from plugin_core.clusters.jobs_api import JobInfo
from plugin_core.errors import CLUSTER_ERRORS, NO_RESOURCES, ClusterRefusedError, RestartError, StorageError
from plugin_core.runs.attempts import Attempts
from plugin_core.runs.directory import AttemptEnd, Intent, Phase, Receipt, RunDir
from plugin_core.specs import Limits
from plugin_core.specs.failure_policy import FailurePolicy, policy_of
from plugin_core.storage.threads import Threads
from plugin_core.supervisor import timings
from plugin_core.supervisor.decide import LIVE, TERMINAL, Job, Observed
from plugin_core.supervisor.where import Where


@dataclass(frozen=True)
class Look:
    """What was observed, with the receipt and job it refers to, the links to the run at its trackers, and the phases of the
    attempt's driver."""

    seen: Observed
    receipt: Receipt | None = None
    job: JobInfo | None = None
    links: dict[str, str] = field(default_factory=dict)
    phases: list[Phase] = field(default_factory=list)


@dataclass(frozen=True)
class _Stored:
    has_result: bool = False
    intent: Intent = field(default_factory=Intent)
    receipt: Receipt | None = None
    end: AttemptEnd | None = None
    beat: Any = None
    links: dict[str, str] = field(default_factory=dict)
    phases: list[Phase] = field(default_factory=list)
    restarts: int = 0


@dataclass(frozen=True)
class _Asked:
    """What the cluster says about a job. `message`: Ray's, or why it could not be asked. `driver_ended`: see
    `Observed`."""

    state: Job = Job.UNASKED
    message: str = ""
    job: JobInfo | None = None
    driver_ended: bool = False
    actors_alive: bool = False


class Observer:
    """Observes one run. Durations use this process's clock only; clocks of two hosts are never compared.

    `since_attempt`: attempts up to this one belong to earlier calls (None: inferred from the first look). If given, the
    next one counts as this call's, which may have begun it in another process.
    """

    def __init__(self, rundir: RunDir, cluster: Cluster, since_attempt: int | None):
        self.rundir = rundir
        self.where = Where(cluster, rundir.uri)
        self.since_attempt = since_attempt
        self.attempt = 0 if since_attempt is None else since_attempt + 1
        self.giving_up = False
        self.limits: Limits | None = None
        self._policy: FailurePolicy | None = None
        self._threads = Threads.of(rundir.uri)
        self._old_intent = Intent()
        self._old_cancels: frozenset[str] = frozenset()
        self._read: dict[tuple[str, str], Any] = {}
        self._started = time.monotonic()
        self._beat: tuple[Any, float] = (None, self._started)
        self._answered = False
        self._asked_about = 0
        self._unreachable_since: float | None = None
        self._embedded = False
        self._pending_since: float | None = None
        self._pending_too_long: tuple[int, str] = (0, "")
        self._live_job = ""

    async def look(self) -> Look:
        """Raises StorageError if the run directory cannot be read; an unresponsive cluster is just an observation."""
        look = await self._look()
        if look.seen.job in TERMINAL and look.seen.end is None and not (look.seen.has_result or look.seen.superseded):
            # the job may have ended between the two reads; now that it is over, everything it wrote is there
            look = await self._look()
        return look

    async def _look(self) -> Look:
        limits = self.limits or await self._begin()
        reading = time.monotonic()
        try:
            stored = await self._threads(self._read_storage)
        except StorageError:
            # while we could not read, the driver may have been unable to write: count its silence from the next look
            self._beat = (None, time.monotonic())
            raise
        if stored.beat != self._beat[0]:
            self._beat = (stored.beat, time.monotonic())
        # as of the read, not as of now: querying an unresponsive cluster takes long
        silent_s = reading - self._beat[1]
        receipt, attempt, since = stored.receipt, 0, self.since_attempt or 0
        asked, superseded, cancel_wanted = _Asked(), False, self._cancel_wanted(stored.intent)
        if receipt is not None:
            attempt = receipt.attempt
            superseded = attempt > max(self.attempt, stored.intent.whole_through)
            if not (superseded and cancel_wanted):  # once given up, the attempt is never ours: this step may be repeated
                self.attempt = attempt
            if attempt != self._asked_about:  # the attempt before it may have used up the patience with its cluster
                self._asked_about, self._unreachable_since = attempt, None
            # whatever its cluster says, a driver that sends heartbeats is alive; and a cancel does not wait for a cluster
            may_live = cancel_wanted or silent_s <= limits.heartbeat_ttl_s
            asked = await self._ask(receipt, may_live)
        job = asked.job
        self._live_job = job.submission_id if job is not None and asked.state in LIVE else ""
        now = time.monotonic()
        given, unreachable_since = limits.unreachable_timeout_s, self._unreachable_since
        here = receipt is not None and receipt.cluster == self.where.cluster.identity
        patience_s = self.where.patience_s if here else None
        given = patience_s if given is None else given
        if given is None and self._embedded:
            gave_up = silent_s > timings.EMBEDDED_WAIT_S
        else:
            gave_up = given is not None and unreachable_since is not None and now - unreachable_since > given
        seen = Observed(
            has_result=stored.has_result,
            attempt=attempt,
            ours=attempt > since,
            end=stored.end,
            job=asked.state,
            job_message=asked.message,
            job_error_type=job.error_type if job else "",
            job_exit_code=job.exit_code if job else None,
            driver_ended=asked.driver_ended,
            actors_alive=asked.actors_alive,
            heartbeat_silent=silent_s > limits.heartbeat_ttl_s,
            cancel_wanted=cancel_wanted,
            attempt_unwanted=0 < attempt <= stored.intent.cancel_through,
            superseded=superseded,
            attempts_of_this_call=max(0, attempt - since),
            restarts=stored.restarts,
            max_attempts=limits.max_attempts,
            policy=self._policy,
            overdue=self._overdue(limits, now, attempt, job),
            gave_up_on_cluster=gave_up,
            elsewhere=patience_s is not None,
        )
        return Look(seen, receipt, job, stored.links, stored.phases)

    async def _begin(self) -> Limits:
        spec = await self._threads(self.rundir.read_spec)
        self.limits, self._policy = spec.limits, policy_of(spec)
        self._old_intent = await self._threads(self.rundir.old_intent)
        attempts = await self._threads(self.rundir.attempts)
        intent = attempts.intent | self._old_intent
        self._old_cancels = intent.whole_run if self.rundir.old_cancels is None else self.rundir.old_cancels
        if self.since_attempt is None:
            self.since_attempt = last = attempts.latest
            # unless its end was recorded or it was told to stop, it may be alive, and is ours from now on
            if last > intent.cancel_through and await self._threads(self.rundir.end, last) is None:
                self.since_attempt -= 1
        return self.limits

    async def called_off(self) -> bool:
        """Whether this call gives up, as of now."""
        attempts = await self._threads(self.rundir.attempts)
        return self._cancel_wanted(attempts.intent | self._old_intent)

    def _cancel_wanted(self, intent: Intent) -> bool:
        """Whether this call gives up: it was told to, or the whole run was cancelled since it began."""
        said_since = intent.whole_run != self._old_cancels or intent.whole_through > (self.since_attempt or 0)
        return self.giving_up or (bool(intent.whole_run) and said_since)

    def _read_storage(self) -> _Stored:
        """Read the run directory: two requests if nothing has changed."""
        rundir = self.rundir
        if self.where.client is None and rundir.has_result():
            return _Stored(has_result=True)
        attempts = rundir.attempts()
        last = attempts.latest
        if not last:
            return _Stored(has_result=rundir.has_result(), intent=attempts.intent | self._old_intent)
        # no beat yet: it may be a driver of an earlier version, which writes its heartbeat elsewhere
        beat = attempts.of(last, "beat") or rundir.heartbeat(last)
        return _Stored(
            # the result is written before the end, so read it after the end: otherwise a run that ends right now would
            # seem to have lost its result
            has_result=rundir.has_result(),
            intent=attempts.intent | self._old_intent,
            receipt=self._once(rundir.receipt, last, attempts.of(last)),
            end=self._once(rundir.end, last, attempts.of(last, "end")),
            beat=(last, beat),
            links=self._once(rundir.links, last, attempts.of(last, "links")) or {},
            phases=self._once(rundir.phases, last, attempts.of(last, "phases")) or [],
            restarts=self._restarts(attempts, last),
        )

    def _restarts(self, attempts: Attempts, last: int) -> int:
        """How many attempts of this call ended because the failure policy restarts them, or for lack of resources; they
        do not count as lost."""
        if self._policy is None and not self.where.is_choice:
            return 0
        ends = [
            self._once(self.rundir.end, attempt, attempts.of(attempt, "end"))
            for attempt in range((self.since_attempt or 0) + 1, last)
        ]
        return sum(end is not None and (end.outcome == RestartError.outcome or end.cause == NO_RESOURCES) for end in ends)

    def _once(self, read: Callable[[int], Any], attempt: int, version: str | None) -> Any:
        """Read an attempt's file once per version; None if it does not exist."""
        key = read.__name__, f"{attempt}-{version}"
        if version is not None and key not in self._read:
            self._read[key] = read(attempt)
        return self._read.get(key)

    async def job_has_changed(self) -> bool:
        """Whether the job that the last look saw alive has ended, or its cluster no longer answers. One request to the
        cluster, none to storage."""
        if self.where.client is None or not self._live_job:
            return False
        try:
            job = await self.where.client.job(self._live_job)
        except CLUSTER_ERRORS:
            return True
        return job is None or job.terminal

    async def _ask(self, receipt: Receipt, may_live: bool) -> _Asked:
        self._embedded = False
        await self.where.find(receipt.cluster)
        if receipt.cluster and receipt.cluster != self.where.cluster.identity:
            # only its own cluster knows, and our token is not for that cluster
            return await self._ask_nobody(receipt.cluster)
        try:
            if self.where.client is None and not await self.where.cluster.lives():
                # connecting would start another one, which a finished or cancelled run has no use for
                return await self._gone("it no longer exists")
            client = await (self.where.reconnect() if may_live else self.where.connect())
            job = await client.job(receipt.submission_id)
            actors_alive = job is not None and job.terminal and await client.has_live_actors(job)
            incarnation = "" if job is not None else (await client.version()).get("session_name")
        except CLUSTER_ERRORS as exc:
            # a token that worked before and is now refused (rotated, proxy trouble) says nothing about the job
            if isinstance(exc, ClusterRefusedError) and not self._answered:
                raise
            # the embedded head gets a new port each time: reconnect, or its next incarnation is never found
            await self.where.close()
            return await self._gone(exc.message) if await self._is_gone() else self._out_of_sight(exc.message)
        self._answered = True
        self._unreachable_since = None
        if job is None:
            return _Asked(Job.ABSENT) if incarnation == receipt.incarnation else await self._gone("")
        # the exit code is that of the driver's process, or of its stand-in, which it does not outlive (see `forked`).
        # If Ray loses sight of a live job, it has none
        ended = job.terminal and job.exit_code is not None
        return _Asked(Job(job.status.lower()), job.message, job, driver_ended=ended, actors_alive=actors_alive)

    async def _is_gone(self) -> bool:
        try:
            return not await self.where.cluster.lives()
        except CLUSTER_ERRORS:
            return False

    async def _gone(self, why: str) -> _Asked:
        return _Asked(Job.OTHER_INCARNATION, why, driver_ended=await self.where.cluster.end_leftovers())

    async def _ask_nobody(self, cluster: str) -> _Asked:
        """What is known about a job on a cluster that this call cannot query."""
        from plugin_core.clusters import local_head

        why = f"it belongs to {cluster}, this call uses {self.where.cluster.identity}"
        if host := local_head.host_of(cluster):
            if await self._threads(local_head.is_gone, cluster):
                return _Asked(Job.OTHER_INCARNATION, f"the keeper of the {cluster} is dead")
            self._embedded = True
            limit = (self.limits.unreachable_timeout_s if self.limits else None) or timings.EMBEDDED_WAIT_S
            why += f"; only {host} can query it, so the next attempt starts after {limit:g} s of silent heartbeat"
        return self._out_of_sight(why)

    def _out_of_sight(self, why: str) -> _Asked:
        self._unreachable_since = self._unreachable_since or time.monotonic()
        return _Asked(Job.UNREACHABLE, why)

    def _overdue(self, limits: Limits, now: float, attempt: int, job: JobInfo | None) -> str:
        if limits.timeout_s is not None and now - self._started > limits.timeout_s:
            return f"the step took longer than limits.timeout_s ({limits.timeout_s:g} s)"
        # a running driver enforces the limit for its workers' resources itself
        pending = job is not None and job.status == "PENDING"
        self._pending_since = (self._pending_since or now) if pending else None
        limit = limits.scheduling_timeout_s
        if limit is not None and self._pending_since is not None and now - self._pending_since > limit:
            why = f"the job was still pending after limits.scheduling_timeout_s ({limit:g} s)"
            self._pending_too_long = attempt, why  # which remains the reason, once it is stopped for it
        return self._pending_too_long[1] if self._pending_too_long[0] == attempt else ""
