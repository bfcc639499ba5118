"""The driver: `python -m plugin_core.driver RUN_URI ATTEMPT NONCE CODE` runs one attempt on the cluster.

It obeys the run directory: it stops when a higher attempt exists (the fence), when a cancel is recorded, or when the step
exceeds its time limit. It writes the heartbeat, the result, and the attempt's end.
"""

from __future__ import annotations

import atexit
import faulthandler
import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import psutil

from plugin_core.clusters.secrets import VARIABLE
from plugin_core.driver import handed_over, log_keeper, masking
from plugin_core.driver.admission import admitted
from plugin_core.driver.resources import patient
from plugin_core.driver.run_step import run_step
from plugin_core.driver.shared_path import check_shared
from plugin_core.driver.watchdog import Watch, signal_pipe
from plugin_core.errors import (
    EXIT_NOT_HANDED_OVER,
    EXIT_NOT_SHARED,
    FencedError,
    InfrastructureError,
    RayTrainWorkflowsError,
    SpecError,
    StorageError,
)
from plugin_core.ray_internals.upload import runtime_env_folders
from plugin_core.runs import timeline, timings
from plugin_core.runs.code import VARIABLE as CODE_VARIABLE
from plugin_core.runs.code import hold
from plugin_core.runs.context import StepContext
from plugin_core.runs.directory import AttemptEnd, RunDir
from plugin_core.runs.fence import Fence
from plugin_core.runs.ledger import rounded
from plugin_core.runs.ledgers import ledger_of
from plugin_core.specs.results import StepResult
from plugin_core.specs.sources import unpack
from plugin_core.specs.step_kinds import step_kind
from plugin_core.storage.scratch import clean_up, scratch
from plugin_core.tracking.session import note_origin, stop_tracking

#: The line before the error in the job's log. An engine's log has the error anyway, and leaves out the rest.
ENDED_WITH = "the attempt ended with:"

logger = logging.getLogger("raytrain.driver")
_unpacked: list[Path] = []
_log: log_keeper.LogKeeper | None = None


def run_attempt(
    rundir: RunDir,
    attempt: int,
    connect: Callable[[dict[str, Any]], None],
    stop: Callable[[RayTrainWorkflowsError, float], None],
    signals: int | None = None,
    code: str = "",
    own_job: bool = False,
) -> StepResult:
    """Run one attempt in this process and record how it ended.

    `connect` connects to Ray with a given runtime_env. `stop` ends the step from the watchdog thread; it gets the error
    and the attempt's duration in seconds. `code`: the digest of the code that the attempt may run. `own_job`: this process
    does nothing but this attempt.
    """
    from plugin_core.errors.classify import classify

    spec = rundir.read_spec()
    with Watch(rundir, attempt, spec.limits, lambda error: stop(error, watch.elapsed_s), signals) as watch:
        try:
            if own_job:
                watch.mark(timeline.PYTHON, psutil.Process().create_time())
            watch.look()
            hold(rundir, code)
            spec = rundir.read_spec()
            if (limits := patient(spec.limits)) is not spec.limits:
                spec = spec.model_copy(update={"limits": limits})
            watch.mark(timeline.CONNECTING)
            connect(_ship_sources(rundir, spec.runtime_env))
            watch.mark(timeline.STARTING)
            check_shared(rundir)
            _abort_uploads(rundir, attempt)
            if spec.tracking:
                note_origin(rundir)
            context = StepContext(
                spec=spec,
                rundir=rundir,
                attempt=attempt,
                payload=rundir.read_payload(),
                set_phase=watch.enter,
                mark=watch.mark,
                phases=lambda: watch.phases,
                set_links=lambda links: setattr(watch, "links", links),
                own_job=own_job,
            )
            if step_kind(spec.kind).admits_itself:
                result = run_step(context)
            else:
                with admitted(context) as context:
                    result = run_step(context)
            watch.look()
            _abort_uploads(rundir, attempt)  # left by killed workers
            more = {
                "warnings": [masking.masked(warning) for warning in result.warnings],
                "timeline": timeline.seconds(timeline.timeline(rundir, attempt, watch.phases)),
                "ledger": rounded(ledger_of(rundir)),
            }
            result = rundir.write_result(result.model_copy(update=more))
        except Exception as exc:
            error = classify(exc)
            _record(rundir, attempt, _end(error, watch.elapsed_s))
            if error is exc:
                raise
            raise error from exc
        finally:
            _forget_sources()
        rundir.record_end(attempt, AttemptEnd("succeeded", elapsed_s=watch.elapsed_s))
        return result


def _end(error: RayTrainWorkflowsError, elapsed_s: float) -> AttemptEnd:
    message, details = map(masking.masked, (error.message, error.details))
    return AttemptEnd(error.outcome, message, details, round(elapsed_s, 1), error.cause)


def _record(rundir: RunDir, attempt: int, end: AttemptEnd) -> None:
    """Record the end, unless a later attempt owns the run: then write nothing."""
    try:
        Fence(rundir.uri, attempt).check()
        rundir.record_end(attempt, end)
    except FencedError as exc:
        logger.warning("%s", exc.message)
    except StorageError as exc:
        logger.error("could not record how this attempt ended (%s): %s", end.outcome, exc.message)


def _abort_uploads(rundir: RunDir, attempt: int) -> None:
    """Abort multipart uploads that killed processes left: they are invisible but cost money. None is in progress here:
    earlier attempts are fenced, and this one has no workers."""
    Fence(rundir.uri, attempt).check()
    try:
        if count := rundir.location.abort_uploads():
            logger.info("aborted %d unfinished uploads of killed processes", count)
    except StorageError as exc:
        logger.warning("%s", exc.message)


def _ship_sources(rundir: RunDir, runtime_env: dict[str, Any]) -> dict[str, Any]:
    """Unpack the modules shipped with the step; return the runtime_env that ships them to every Ray worker. What the
    step's own runtime_env has brought to the cluster as well comes from there."""
    shipped = rundir.read_sources()
    if shipped is None:
        return {}
    folder = Path(tempfile.mkdtemp(prefix="code-", dir=scratch()))
    _unpacked.append(folder)
    modules = unpack(shipped, folder, runtime_env_folders())
    sys.path.insert(0, str(folder))
    if not modules:
        return {}
    return {"py_modules": [*modules, *_jobs_own().get("py_modules", runtime_env.get("py_modules", []))]}


def _forget_sources() -> None:
    """Unload the run's copies, so that they do not shadow the user's modules in a process that outlives its attempt (see
    `execute`)."""
    sys.path[:] = [entry for entry in sys.path if Path(entry) not in _unpacked]


def _jobs_own() -> dict[str, Any]:
    """The runtime_env that the job was submitted with."""
    own: dict[str, Any] = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR") or "{}").get("runtime_env") or {}
    return own


@atexit.register
def _keep_log() -> None:
    """Keep what the job's log contains by now."""
    if _log is not None:
        _log.flush()


def _connect_job(runtime_env: dict[str, Any]) -> None:
    os.environ["RAY_OVERRIDE_JOB_RUNTIME_ENV"] = "1"
    import ray

    if VARIABLE in os.environ:
        runtime_env = {**runtime_env, **handed_over.workers_runtime_env(_jobs_own())}
    ray.init(address="auto", runtime_env=runtime_env or None, log_to_driver=True)


def main(uri: str, attempt: int, nonce: str, code: str = "") -> int:
    """Run one attempt as a Ray job; the exit code identifies the class of error."""
    handler = logging.StreamHandler()
    handler.setFormatter(masking.Masked("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    try:
        handed_over.take()
    except InfrastructureError as exc:
        print(exc.message, file=sys.stderr)  # without storage credentials it cannot be recorded
        return EXIT_NOT_HANDED_OVER
    try:
        return _main(uri, attempt, nonce, code)
    finally:
        _keep_log()  # some storages accept no requests while the interpreter shuts down
        handed_over.end()


def _main(uri: str, attempt: int, nonce: str, code: str) -> int:
    global _log
    try:
        rundir = RunDir.at(uri)
        receipt = rundir.receipt(attempt)
    except SpecError as exc:  # this node cannot open the storage, so it cannot be recorded
        print(f"{type(exc).__name__}: {exc.message}", file=sys.stderr)
        return exc.exit_code
    if receipt is None:
        print(f"run_config.storage_path: this node does not find this attempt at {uri}: the path is not shared with the"
              " cluster", file=sys.stderr)  # fmt: skip
        return EXIT_NOT_SHARED
    if receipt.nonce != nonce:
        print(f"attempt {attempt} of {uri} belongs to another submission; stopping", file=sys.stderr)
        return FencedError.exit_code

    _log = log_keeper.of_driver(rundir, attempt)

    def stop(error: RayTrainWorkflowsError, elapsed_s: float) -> None:
        # called in the watchdog thread, while the main thread may be deep inside Ray: end the process; Ray kills its actors
        print(f"stopping: {masking.masked(error.message)}", file=sys.stderr, flush=True)
        _record(rundir, attempt, _end(error, elapsed_s))
        stop_tracking(error)
        _keep_log()
        handed_over.end()
        clean_up()  # os._exit runs no exit handlers
        os._exit(error.exit_code)

    try:
        expected = os.environ.get(CODE_VARIABLE) or code
        result = run_attempt(rundir, attempt, _connect_job, stop, signal_pipe(), expected, own_job=True)
    except RayTrainWorkflowsError as exc:
        print(ENDED_WITH, masking.masked(exc.details), sep="\n", file=sys.stderr)
        print(masking.masked(f"{type(exc).__name__}: {exc.message}"), file=sys.stderr)
        return exc.exit_code
    print(f"result: {result.reference().model_dump_json()}")
    return 0


def leave(code: int) -> NoReturn:
    """Exit within `EXIT_S`."""
    faulthandler.dump_traceback_later(timings.EXIT_S, exit=True)  # a C thread: needs neither the GIL nor the main thread
    if (ray := sys.modules.get("ray")) is not None:
        ray.shutdown(_exiting_interpreter=True)  # prints the workers' last output
    _keep_log()
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(code)
