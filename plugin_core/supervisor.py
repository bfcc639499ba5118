"""Brings a run to its result: observe, decide, act, again. One asynchronous loop serves every engine.

Storage is read and written in threads, the cluster is asked over aiohttp: nothing blocks the event loop. The loop keeps no
state that matters: whoever calls again with the same run goes on where things are.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from plugin_core.clusters import Cluster, LocalCluster, check_fits
from plugin_core.decide import Action, Do, Job, Observed, decide
from plugin_core.errors import ClusterUnreachableError, InfrastructureError, StepError, from_outcome
from plugin_core.functions import check_reference
from plugin_core.jobs import ApiError, JobInfo, JobsClient
from plugin_core.journal import JournalReader
from plugin_core.record import spec_datasets, spec_functions
from plugin_core.results import AnyResult
from plugin_core.rundir import Receipt, RunDir
from plugin_core.specs import Limits, StepSpec

T = TypeVar("T")
#: Seconds between two looks: short at first, so that a short step is not made longer, then longer.
POLL_FIRST_S, POLL_MAX_S = 0.5, 5.0
#: An API that answers a submit with an error so many times in a row is not waited for any longer.
SUBMIT_ERRORS = 10


@dataclass(frozen=True)
class Event:
    """Something an engine may show: kind "state" (a decision), "phase" and "report" (journal entries in `data`)
    or "log" (lines of the job)."""

    kind: str
    text: str
    data: dict[str, Any] = field(default_factory=dict)


Listener = Callable[[Event], None]


async def prepare(spec: StepSpec, cluster: Cluster, generation: int = 1) -> RunDir:
    """Check the step and lay down its run directory; nothing is submitted. Raises SpecError and its kin."""
    rundir = RunDir.of(spec, generation)
    await asyncio.to_thread(_check_here, spec, cluster)
    await asyncio.to_thread(rundir.write_spec, spec)
    # a run with an attempt is judged by the loop, which waits for a cluster that cannot be reached just now
    if not await asyncio.to_thread(rundir.receipts) and await asyncio.to_thread(rundir.result) is None:
        async with await cluster.connect() as client:
            await client.version()
            if not cluster.autoscaling:
                check_fits(spec, await client.nodes())
    return rundir


def _check_here(spec: StepSpec, cluster: Cluster) -> None:
    from plugin_core.data import check_dataset

    _, references = spec_functions(spec)
    for name, reference in references.items():
        check_reference(name, reference, must_exist=cluster.shares_this_machine)
    for name, dataset in spec_datasets(spec).items():
        check_dataset(name, dataset, label_column=getattr(spec, "label_column", None), here=cluster.shares_this_machine)


class Supervisor:
    """Brings one run to its end. `since_attempt`: attempts up to this one belong to earlier calls.

    An engine that hands over between processes (an operator that defers to a trigger) passes `since_attempt` on, so that
    both count the same attempts as theirs.
    """

    def __init__(
        self,
        rundir: RunDir,
        cluster: Cluster,
        *,
        since_attempt: int | None = None,
        listener: Listener | None = None,
        metadata: dict[str, str] | None = None,
    ):
        self.rundir = rundir
        self.cluster = cluster
        self.since_attempt = since_attempt
        self._tell = listener or (lambda event: None)
        self._metadata = metadata or {}
        self._limits: Limits | None = None
        self._client: JobsClient | None = None
        self._journal = JournalReader(rundir)
        self._log_seen: dict[str, int] = {}
        self._beat: tuple[Any, float] = (None, time.monotonic())
        self._unreachable_since: float | None = None
        self._pending_since: float | None = None
        self._started = time.monotonic()
        self._said = ""
        self._submit_errors = 0

    async def run(self) -> AnyResult:
        """Until the run has a result. Raises StepError, SpecError or ClusterUnreachableError."""
        try:
            pause = POLL_FIRST_S
            while True:
                result = await self.step()
                if result is not None:
                    return result
                await asyncio.sleep(pause)
                pause = min(pause * 1.2, POLL_MAX_S)
        finally:
            await self.close()

    async def submit(self) -> AnyResult | None:
        """One look and one action: the run has an attempt, or a result, when this returns. For an operator that defers."""
        try:
            return await self.step()
        finally:
            await self.close()

    async def step(self) -> AnyResult | None:
        """One look and one action."""
        if self._limits is None:
            await self._begin()
        seen, receipt, job = await self._observe()
        action = decide(seen)
        await self._show(action, receipt, job)
        return await self._act(action, seen, receipt)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.__aexit__(None, None, None)
            self._client = None

    # ---- observe

    async def _begin(self) -> None:
        self._limits = (await asyncio.to_thread(self.rundir.read_spec)).limits
        if self.since_attempt is not None:
            return
        receipts = await asyncio.to_thread(self.rundir.receipts)
        self.since_attempt = receipts[-1] if receipts else 0
        if await asyncio.to_thread(self.rundir.wanted) != "run":
            await asyncio.to_thread(self.rundir.want, "run")  # an attempt that was told to stop is never ours
        elif receipts and await asyncio.to_thread(self.rundir.end, receipts[-1]) is None:
            self.since_attempt -= 1  # it may be alive: then it is ours from now on

    async def _observe(self) -> tuple[Observed, Receipt | None, JobInfo | None]:
        look = await asyncio.to_thread(self._read_storage)
        seen: dict[str, Any] = {"has_result": look.has_result, "cancel_wanted": look.cancel, "end": look.end}
        job: JobInfo | None = None
        since = self.since_attempt or 0
        if look.receipt is not None:
            job, seen["job"] = await self._ask(look.receipt)
            if job is not None:
                seen.update(job_message=job.message, job_error_type=job.error_type, job_exit_code=job.exit_code)
            seen["attempt"] = look.receipt.attempt
            seen["ours"] = look.receipt.attempt > since
            seen["attempts_of_this_call"] = look.receipt.attempt - since
        now, limits = time.monotonic(), self._limits or Limits()
        if look.beat != self._beat[0]:
            self._beat = (look.beat, now)
        silent = now - self._beat[1] > limits.heartbeat_ttl_s
        unreachable_s = now - self._unreachable_since if self._unreachable_since is not None else 0.0
        seen["heartbeat_silent"] = silent
        seen["max_attempts"] = limits.max_attempts
        seen["overdue"] = self._overdue(limits, now, look, job)
        limit = limits.unreachable_timeout_s
        seen["gave_up_on_cluster"] = limit is not None and unreachable_s > limit
        return Observed(**seen), look.receipt, job

    def _overdue(self, limits: Limits, now: float, look: _StorageLook, job: JobInfo | None) -> str:
        if limits.timeout_s is not None and now - self._started > limits.timeout_s:
            return f"the step took longer than limits.timeout_s ({limits.timeout_s:g} s)"
        pending = job is not None and (job.status == "PENDING" or look.phase == "waiting for resources")
        self._pending_since = (self._pending_since or now) if pending else None
        limit = limits.scheduling_timeout_s
        if limit is not None and self._pending_since is not None and now - self._pending_since > limit:
            return f"the step got no resources within limits.scheduling_timeout_s ({limit:g} s)"
        return ""

    def _read_storage(self) -> _StorageLook:
        rundir = self.rundir
        has_result = rundir.result() is not None
        if has_result and self._client is None:
            return _StorageLook(has_result=True)
        receipts = rundir.receipts()
        last = receipts[-1] if receipts else 0
        heartbeat = rundir.heartbeat(last) if last else None
        return _StorageLook(
            has_result=has_result,
            cancel=rundir.wanted() == "cancel",
            receipt=rundir.receipt(last) if last else None,
            end=rundir.end(last) if last else None,
            beat=(last, heartbeat.counter if heartbeat else None),
            phase=heartbeat.phase if heartbeat else "",
        )

    async def _ask(self, receipt: Receipt) -> tuple[JobInfo | None, Job]:
        try:
            client = await self._connect()
            job = await client.job(receipt.submission_id)
            if job is None:
                version = await client.version()
                state = Job.ABSENT if version.get("session_name") == receipt.incarnation else Job.OTHER_INCARNATION
            else:
                state = Job(job.status.lower())
        except ClusterUnreachableError:
            # the embedded head has a new port each time: connect anew, or its next incarnation is never found
            await self.close()
            self._unreachable_since = self._unreachable_since or time.monotonic()
            return None, Job.UNREACHABLE
        self._unreachable_since = None
        return job, state

    async def _connect(self) -> JobsClient:
        if self._client is None:
            client = await self.cluster.connect()
            self._client = await client.__aenter__()
        return self._client

    # ---- act

    async def _act(self, action: Action, seen: Observed, receipt: Receipt | None) -> AnyResult | None:
        match action.do:
            case Do.RETURN:
                return await asyncio.to_thread(self.rundir.result)
            case Do.FAIL:
                raise from_outcome(action.outcome, action.why, action.details)
            case Do.SUBMIT_NEXT:
                await self._submit(seen.attempt + 1)
            case Do.SUBMIT_SAME if receipt is not None:
                await self._start_job(receipt)
            case Do.STOP if receipt is not None:
                await self._stop_job(receipt)
        return None

    async def _submit(self, attempt: int) -> None:
        last = (await asyncio.to_thread(self.rundir.receipts) or [0])[-1]
        if last >= attempt:
            return  # somebody else was faster; the next look finds their attempt
        try:
            client = await self._connect()
            incarnation = (await client.version()).get("session_name", "")
        except ClusterUnreachableError as exc:
            if attempt == 1:
                raise  # nothing has begun: the engine may retry as it likes
            self._tell(Event("state", f"attempt {attempt} waits for the cluster: {exc.message}"))
            await self.close()
            return
        receipt = await asyncio.to_thread(self.rundir.claim, attempt, client.address, incarnation)
        if receipt is not None:
            await self._start_job(receipt)

    async def _start_job(self, receipt: Receipt) -> None:
        spec = await asyncio.to_thread(self.rundir.read_spec)
        client = await self._connect()
        command = f"{self.cluster.driver_command()} '{self.rundir.uri}' {receipt.attempt} {receipt.nonce}"
        metadata = {**self._metadata, "run": self.rundir.uri, "name": self.rundir.name, "attempt": str(receipt.attempt)}
        self._beat = ((receipt.attempt, None), time.monotonic())
        try:
            await client.submit(receipt.submission_id, command, spec.runtime_env, metadata)
        except ClusterUnreachableError as exc:
            # whether it arrived is unknown; the next look asks, and the same id cannot become two jobs
            self._tell(Event("state", f"the submit of {receipt.submission_id} was not answered: {exc.message}"))
            self._submit_errors += isinstance(exc, ApiError)
            if self._submit_errors >= SUBMIT_ERRORS:
                raise InfrastructureError(f"the cluster answers, but takes no job: {exc.message}") from exc
        else:
            self._submit_errors = 0

    async def _stop_job(self, receipt: Receipt) -> None:
        try:
            await (await self._connect()).stop(receipt.submission_id)
        except ClusterUnreachableError as exc:
            self._tell(Event("state", f"the stop of {receipt.submission_id} was not answered: {exc.message}"))

    # ---- show

    async def _show(self, action: Action, receipt: Receipt | None, job: JobInfo | None) -> None:
        text = f"{action.do.value}: {action.why}"
        if text != self._said:
            self._said = text
            data = {"submission_id": receipt.submission_id, "attempt": receipt.attempt} if receipt else {}
            self._tell(Event("state", text, data))
        if receipt is None:
            return
        for entry in await asyncio.to_thread(self._journal.read):
            if "report" in entry:
                self._tell(Event("report", f"report {entry['report']}: {_in_words(entry['metrics'])}", entry))
            else:
                self._tell(Event("phase", f"phase: {entry['phase']}", entry))
        if job is not None and self._client is not None:
            await self._show_log(self._client, receipt.submission_id, final=job.terminal or action.do is Do.RETURN)

    async def _show_log(self, client: JobsClient, submission_id: str, final: bool) -> None:
        try:
            log = await client.logs(submission_id)
        except ClusterUnreachableError:
            return  # read again from the same position when the cluster answers
        start = self._log_seen.get(submission_id, 0)
        end = len(log) if final else log.rfind("\n") + 1
        if end > start:
            self._log_seen[submission_id] = end
            self._tell(Event("log", log[start:end].rstrip("\n")))


def _in_words(metrics: dict[str, Any]) -> str:
    return " ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in metrics.items())


@dataclass(frozen=True)
class _StorageLook:
    has_result: bool = False
    cancel: bool = False
    receipt: Receipt | None = None
    end: Any = None
    beat: Any = None
    phase: str = ""


async def arun(spec: StepSpec, cluster: Cluster | None = None, listener: Listener | None = None) -> AnyResult:
    """Run a step to its result on `cluster` (default: the embedded local one)."""
    where: Cluster = cluster or LocalCluster()
    rundir = await prepare(spec, where)
    return await Supervisor(rundir, where, listener=listener).run()


def run(spec: StepSpec, cluster: Cluster | None = None, listener: Listener | None = None) -> AnyResult:
    """`arun`, for code without an event loop. The run goes on when this process dies; call again to re-attach."""
    return run_sync(arun(spec, cluster, listener))


async def acancel(rundir: RunDir, cluster: Cluster) -> str:
    """Cancel a run: say so where its driver reads it, stop its job, wait until it is over. Safe to repeat.

    Returns "cancelled", or "finished" when the run had its result before.
    """
    if await asyncio.to_thread(rundir.result) is not None:
        return "finished"
    await asyncio.to_thread(rundir.want, "cancel")
    supervisor = Supervisor(rundir, cluster, since_attempt=0)
    try:
        await supervisor.run()
    except StepError as exc:
        if exc.outcome != "cancelled":
            raise
        return "cancelled"
    return "finished"


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine from synchronous code, also from inside a thread that already runs an event loop."""
    if not _has_running_loop():
        return asyncio.run(coroutine)
    inner: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []

    async def work() -> T:
        task = asyncio.current_task()
        assert task is not None
        inner.append((asyncio.get_running_loop(), task))
        return await coroutine

    with ThreadPoolExecutor(1, thread_name_prefix="raytrain") as pool:
        future = pool.submit(contextvars.copy_context().run, asyncio.run, work())
        try:
            return future.result()
        except BaseException:
            # an engine interrupts this thread; the coroutine in the other one has to be told
            if inner and not future.done():
                loop, task = inner[0]
                loop.call_soon_threadsafe(task.cancel)
            raise


def _has_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


__all__ = ["Event", "Listener", "Supervisor", "acancel", "arun", "prepare", "run", "run_sync"]
