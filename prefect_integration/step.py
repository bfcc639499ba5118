"""A step called by Prefect: named after the flow run, followed in its log, cancelled with it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectException, TerminationSignal
from prefect.states import Cancelled
from prefect.utilities.urls import url_for

from plugin_core.engine import (
    Cluster,
    FallbackCluster,
    Line,
    LocalCluster,
    RayTrainWorkflowsError,
    RunDir,
    SpecError,
    StepCancelledError,
    StepError,
    StepResult,
    StepSpec,
    Supervisor,
    Threads,
    acancel,
    as_spec,
    in_own_loop,
    in_thread,
    newest_run,
    prepare,
    run_sync,
    shown,
)
from prefect_integration.identity import Call, named
from prefect_integration.shared_cluster import share_until_the_end
from prefect_integration.visibility import Board, show_asset

#: Seconds between two checks of the flow run's state: Prefect interrupts neither submitted nor mapped tasks, nor a flow
#: without a runner.
CANCEL_POLL_S = 3.0
#: Seconds between two checks for a Ctrl-C that ended the flow around a submitted or mapped task.
INTERRUPT_POLL_S = 0.5
#: Errors of requests to Prefect's server; the last two are those of an answer that makes no sense, such as a proxy's page.
#: They say nothing about the job, which continues.
SERVER_ERRORS = (httpx.HTTPError, PrefectException, OSError, ValueError, TypeError)


class Step:
    """A step in the flow run (and task run) that calls it. `cluster`: the core's, a `RayCluster` block, a list of those in
    order of preference, or None (local).

    Raises SpecError or a subclass if the spec, key or cluster is invalid.
    """

    def __init__(self, spec: Any, accepted: type[StepSpec], cluster: Any, key: str | None, logger: Any):
        self.logger = logger
        self.given_cluster = cluster
        self.cluster, runtime_env = as_cluster(cluster)
        self._given = self._spec = as_spec(spec, accepted).with_runtime_env(runtime_env)
        self._key = key
        self._call: Call | None = None
        self._rundir: RunDir | None = None
        self._supervisor: Supervisor | None = None
        self._board: Board | None = None
        # a task that is called or awaited there is interrupted directly
        self._in_main_thread = threading.current_thread() is threading.main_thread()
        #: the flow run whose cancel ended this step
        self.cancelled_by: UUID | None = None

    @property
    def rundir(self) -> RunDir:
        if self._rundir is None:
            raise SpecError("run: got a step that was not submitted; expected a submitted one")
        return self._rundir

    # ---- forward

    async def submit(self) -> None:
        """Submit the run: return once it has an attempt or a result."""
        supervisor, _, _ = await self._begin()
        await supervisor.submit()

    async def follow(self) -> StepResult:
        """Follow the run to its result. Raises StepError, SpecError, ClusterUnreachableError or StorageError."""
        supervisor, board, call = await self._begin()
        companions = asyncio.gather(self._accompany(supervisor, board, call), self._watch_keyboard(supervisor))
        try:
            result = await supervisor.run()
        except StepError as exc:
            await self._tell_prefect(board.finish(None))
            if exc.details:
                exc.add_note(exc.details)  # Prefect's log then has the user's traceback, not only that of the task
            if self.cancelled_by is not None and isinstance(exc, StepCancelledError):
                _close_without_runner(self.cancelled_by)
            raise
        finally:
            companions.cancel()
            await asyncio.gather(companions, return_exceptions=True)
        show_asset(self._spec, result)
        await self._tell_prefect(board.finish(result))
        return result

    def run_sync(self) -> StepResult:
        """`follow`, in a task that Prefect interrupts with a TerminationSignal."""
        try:
            return run_sync(self.follow())
        except TerminationSignal as exc:
            # SIGTERM without a cancel (pod evicted, worker restarted) is a crash: the job continues, and a retry finds it
            if not run_sync(self._cancel_wanted()):
                raise
            run_sync(self._stop())
            raise StepCancelledError("the flow run was cancelled") from exc
        except (KeyboardInterrupt, asyncio.CancelledError):
            run_sync(self._stop())
            raise

    async def run_async(self) -> StepResult:
        """`follow`, in a coroutine that Prefect or the user's code may cancel."""
        terminated = _sigterm_seen()
        try:
            return await in_own_loop(self.follow())
        except (asyncio.CancelledError, TerminationSignal):
            if not terminated.is_set() or await self._cancel_wanted():
                await self._stop()
            raise

    async def acancel(self) -> str:
        """Stop the run, even if others follow it, and wait until its processes are gone."""
        return await acancel(self.rundir, self.cluster)

    # ---- how

    async def _begin(self) -> tuple[Supervisor, Board, Call]:
        if self._supervisor is not None and self._board is not None and self._call is not None:
            return self._supervisor, self._board, self._call
        call = self._call = await in_thread(Call.here)
        spec = self._spec = await in_thread(named, self._given, self._key, call)
        # from here on an interrupt has something to cancel
        self.cluster = share_until_the_end(self.cluster, call.root)
        self._rundir = await Threads.of(RunDir.of(spec).uri)(newest_run, spec)
        self._rundir = await prepare(spec, self.cluster, call.root or None, self._write, current=self._rundir)
        dashboard_url = getattr(self.given_cluster, "dashboard_url", None) or ""
        board = self._board = Board(call.flow_name, self._key or spec.kind, self._rundir, dashboard_url)
        # before the submit, so that Prefect hooks can find the run (`hooks`)
        await self._tell_prefect(board.remember(cluster_data(self.given_cluster, self.cluster, call.root)))
        self._supervisor = Supervisor(
            self._rundir,
            self.cluster,
            listener=board.note,
            log=self._write,
            metadata=_metadata(call),
            reader=f"prefect-{call.root}",
            wanted=self._wanted,
        )
        return self._supervisor, board, call

    def _write(self, line: Line) -> None:
        """Write a line to the task run's log, with the time of its event."""
        _, options = self.logger.process("", {})  # Prefect's adapter: the ids of the run go with each line
        logger = self.logger.logger
        for text in line.lines or [line.text]:
            record = logger.makeRecord(logger.name, line.level, "", 0, "%s", (text,), None, extra=options.get("extra"))
            record.created = line.time
            if logger.isEnabledFor(line.level):
                logger.handle(record)

    async def _accompany(self, supervisor: Supervisor, board: Board, call: Call) -> None:
        """Concurrently with the loop: watch for a cancel in Prefect, and publish progress there. No error ends this, or a
        later cancel would not reach the job."""
        unexpected = logging.WARNING
        while True:
            try:
                async with get_client() as client:
                    while True:
                        await asyncio.sleep(CANCEL_POLL_S)
                        if (found := await _cancelled_flow_run(client, call.flow_runs)) is not None:
                            self.logger.warning("the flow run is cancelled: stopping %s", self.rundir.uri)
                            self.cancelled_by = found
                            supervisor.give_up()
                            return
                        await board.publish(client)
            except SERVER_ERRORS as exc:
                self.logger.debug("Prefect's server did not answer; the job continues: %s", exc)
            except Exception as exc:  # noqa: BLE001 - nobody would see it
                self.logger.log(unexpected, "could not watch the flow run; trying again: %r", exc)
                unexpected = logging.DEBUG  # one warning is enough
            await asyncio.sleep(CANCEL_POLL_S)

    async def _watch_keyboard(self, supervisor: Supervisor) -> None:
        """Concurrently with the loop, in a submitted or mapped task: watch for a Ctrl-C. Only the main thread gets it, and
        then waits for this task."""
        while not self._in_main_thread:
            if _main_thread_interrupted():
                self.logger.warning("interrupted from the keyboard: stopping %s", self.rundir.uri)
                supervisor.give_up()
                return
            await asyncio.sleep(INTERRUPT_POLL_S)

    async def _cancel_wanted(self) -> bool:
        try:
            async with get_client() as client:
                self.cancelled_by = await _cancelled_flow_run(client, self._call.flow_runs if self._call else ())
        except SERVER_ERRORS as exc:
            self.logger.warning("could not read whether the flow run is cancelled; the job continues: %s", exc)
        return self.cancelled_by is not None

    async def _wanted(self) -> bool:
        return not await self._cancel_wanted()

    async def _stop(self) -> None:
        """Cancel the attempts this call knows of; later ones belong to other callers."""
        if self._rundir is None:
            return
        self.logger.warning("cancelling %s", self._rundir.uri)
        try:
            latest = await Threads.of(self._rundir.uri)(self._rundir.latest)
            outcome = await acancel(self._rundir, self.cluster, latest or None)
        except RayTrainWorkflowsError as exc:
            outcome = exc.message
        self.logger.warning("%s: %s", self._rundir.uri, outcome)

    async def _tell_prefect(self, telling: Any) -> None:
        """Send something to Prefect; a failure is only logged, so that it never fails a training."""
        try:
            await telling
        except (*SERVER_ERRORS, RayTrainWorkflowsError) as exc:
            self.logger.warning("could not publish to Prefect: %s", exc)


def as_cluster(given: Any) -> tuple[Cluster, dict[str, Any]]:
    """Return the core's cluster and the block's `runtime_env`."""
    if given is None:
        return LocalCluster(), {}
    if isinstance(given, (list, tuple)):
        each = [as_cluster(one) for one in given]
        runtime_envs = [runtime_env for _, runtime_env in each]
        if any(runtime_env != runtime_envs[0] for runtime_env in runtime_envs):
            raise SpecError("cluster: got blocks with different runtime_envs in a list; expected the same in each")
        return FallbackCluster([cluster for cluster, _ in each]), runtime_envs[0] if runtime_envs else {}
    if hasattr(given, "get_cluster"):
        return given.get_cluster(), given.runtime_env
    if isinstance(given, str) or not hasattr(given, "connect"):
        raise SpecError(
            f"cluster: got {shown(given)}; expected a RayCluster block, plugin_core.RayCluster(address), a"
            " plugin_core.KubeRayCluster, a list of these, or None for the embedded local cluster"
        )
    return given, {}


def cluster_data(given: Any, cluster: Cluster, root: str) -> dict[str, Any]:
    """The data that lets a hook find the cluster again: a block's name and the root flow run, or any other cluster
    without its secrets."""
    if isinstance(given, (list, tuple)):
        each = [cluster_data(one, its, root) for one, its in zip(given, cluster.choices(), strict=True)]
        return {"clusters": each, "after_s": cluster.after_s}
    if name := getattr(given, "_block_document_name", None):
        return {"block": name, "workflow": root}
    return cluster.reference()


def _metadata(call: Call) -> dict[str, str]:
    """The task run a Ray job belongs to, as shown by `ray job list` and by trackers."""
    ids = {"flow_run": call.flow_runs[-1] if call.flow_runs else "", "task_run": call.task_run_id or ""}
    page = url_for("flow-run", obj_id=call.flow_runs[-1]) if call.flow_runs else None
    known = {f"prefect_{name}": str(value) for name, value in ids.items() if value} | ({"engine_url": page} if page else {})
    return {"orchestrator": "prefect", "prefect_flow": call.flow_name, **known}


async def _cancelled_flow_run(client: PrefectClient, ids: Sequence[UUID]) -> UUID | None:
    """Return the first of these flow runs, from the root, that is cancelled or cancelling."""
    if not ids:
        return None
    runs = await client.read_flow_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=list(ids))))
    ended = {run.id for run in runs if run.state and (run.state.is_cancelling() or run.state.is_cancelled())}
    return next((id for id in ids if id in ended), None)


def _close_without_runner(flow_run_id: UUID) -> None:
    """Move a Cancelling flow run to Cancelled at exit, as a runner would; a plain `python flow.py` has no runner.

    Only possible once the engine has finished: Prefect lets it go from Cancelled to Failed, but not from Cancelling.
    """
    context = FlowRunContext.get()
    own = context.flow_run if context and context.flow_run and context.flow_run.id == flow_run_id else None

    def close() -> None:
        while threading.main_thread().is_alive() and (own is None or own.state is None or own.state.is_running()):
            time.sleep(0.2)
        with get_client(sync_client=True) as client:
            state = client.read_flow_run(flow_run_id).state
            if state is not None and state.is_cancelling():
                client.set_flow_run_state(flow_run_id, Cancelled(message="the training was stopped"), force=True)

    if "PREFECT__FLOW_RUN_ID" not in os.environ:
        # explicitly not a daemon: a thread inherits that flag, and the process must wait for this one at exit
        threading.Thread(target=close, name="raytrain-close", daemon=False).start()


def _main_thread_interrupted() -> bool:
    """Whether a Ctrl-C interrupted the main thread, which is now leaving `with` blocks, such as the task runner's."""
    handled: Any = sys._current_exceptions().get(threading.main_thread().ident or 0)
    # Python 3.11 gives `sys.exc_info()`, later ones the exception
    error = handled[1] if isinstance(handled, tuple) else handled
    if isinstance(error, asyncio.CancelledError):  # what asyncio turns a Ctrl-C into
        runner = getattr(getattr(signal.getsignal(signal.SIGINT), "func", None), "__self__", None)
        return getattr(runner, "_interrupt_count", 0) > 0
    return isinstance(error, KeyboardInterrupt)


def _sigterm_seen() -> threading.Event:
    """An event set when this process gets SIGTERM. Prefect turns it into a TerminationSignal, which an awaiting coroutine
    sees only as CancelledError, the same as Ctrl-C or the user's own timeouts."""
    before = signal.getsignal(signal.SIGTERM)
    if isinstance(before, _NoteSigterm):
        return before.seen
    note = _NoteSigterm(before)
    # a flow awaited in another thread gets no signal; Prefect restores its own handler when the flow ends
    if threading.current_thread() is threading.main_thread() and callable(before):
        signal.signal(signal.SIGTERM, note)
    return note.seen


class _NoteSigterm:
    def __init__(self, handler: Any):
        self.handler = handler
        self.seen = threading.Event()

    def __call__(self, number: int, frame: Any) -> None:
        self.seen.set()
        self.handler(number, frame)
