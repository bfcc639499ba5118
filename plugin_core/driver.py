"""The driver: `python -m plugin_core.driver RUN_URI ATTEMPT NONCE`, one attempt of a run, on the cluster.

It obeys the run directory: it stops when a higher attempt exists (the fence), when cancel is wanted, and when the step's
time is over. It writes the heartbeat, the attempt's end and, last of all, the result.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from plugin_core import env_files
from plugin_core.errors import EXIT_NOT_SHARED, FencedError, RayTrainWorkflowsError, StorageError
from plugin_core.fence import Fence
from plugin_core.results import AnyResult
from plugin_core.rundir import AttemptEnd, RunDir
from plugin_core.sources import unpack
from plugin_core.steps import StepContext, run_step
from plugin_core.steps.shared import check_shared
from plugin_core.storage import be_patient
from plugin_core.tracking import note_origin, stop_tracking
from plugin_core.watch import Watch, signal_pipe

logger = logging.getLogger("raytrain.driver")
_temporary: list[Path] = []


def run_attempt(
    rundir: RunDir,
    attempt: int,
    connect: Callable[[dict[str, Any]], None],
    stop: Callable[[RayTrainWorkflowsError, float], None],
    signals: int | None = None,
) -> AnyResult:
    """Run one attempt in this process and record how it ended.

    `connect` joins a Ray with the runtime_env it is given; `stop` ends the step from the watching thread, with the
    error and the seconds the attempt took.
    """
    from plugin_core.failures import classify

    spec = rundir.read_spec()
    with Watch(rundir, attempt, spec.limits, lambda error: stop(error, watch.elapsed_s), signals) as watch:
        try:
            watch.look()
            connect(_ship_sources(rundir, spec.runtime_env))
            check_shared(rundir)
            if spec.tracking:
                note_origin(rundir)
            context = StepContext(
                spec=spec,
                rundir=rundir,
                attempt=attempt,
                payload=rundir.read_payload(),
                set_phase=lambda phase: setattr(watch, "phase", phase),
                set_links=lambda links: setattr(watch, "links", links),
            )
            result = run_step(context)
            watch.look()
            result = rundir.write_result(result)
        except Exception as exc:
            error = classify(exc)
            _record(rundir, attempt, _end(error, watch.elapsed_s))
            if error is exc:
                raise
            raise error from exc
        rundir.record_end(attempt, AttemptEnd("succeeded", elapsed_s=watch.elapsed_s))
        return result


def _end(error: RayTrainWorkflowsError, elapsed_s: float) -> AttemptEnd:
    return AttemptEnd(error.outcome, error.message, getattr(error, "details", ""), round(elapsed_s, 1))


def _record(rundir: RunDir, attempt: int, end: AttemptEnd) -> None:
    """Record the end, unless a later attempt owns the run: then this one writes nothing more."""
    try:
        Fence(rundir.uri, attempt).check()
        rundir.record_end(attempt, end)
    except FencedError as exc:
        logger.warning("%s", exc.message)
    except StorageError as exc:
        logger.error("how this attempt ended (%s) cannot be recorded: %s", end.outcome, exc.message)


def _ship_sources(rundir: RunDir, runtime_env: dict[str, Any]) -> dict[str, Any]:
    """Unpack the modules that travel with the step; returns the runtime_env that takes them to every Ray worker."""
    shipped = rundir.read_sources()
    if shipped is None:
        return {}
    folder = Path(tempfile.mkdtemp(prefix="raytrain-code-"))
    _temporary.append(folder)
    modules = unpack(shipped, folder)
    sys.path.insert(0, str(folder))
    own = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR") or "{}").get("runtime_env", {})
    return {"py_modules": [*modules, *own.get("py_modules", runtime_env.get("py_modules", []))]}


@atexit.register
def _clean_up() -> None:
    for folder in _temporary:
        shutil.rmtree(folder, ignore_errors=True)


def _connect_job(runtime_env: dict[str, Any]) -> None:
    os.environ["RAY_OVERRIDE_JOB_RUNTIME_ENV"] = "1"
    import ray

    ray.init(address="auto", runtime_env=runtime_env or None, log_to_driver=True)


def main(uri: str, attempt: int, nonce: str) -> int:
    """One attempt as a Ray job; the exit code tells the class of error."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    env_files.write()
    rundir = RunDir.at(uri)
    receipt = rundir.receipt(attempt)
    if receipt is None:
        print(f"run_config.storage_path: {uri} holds no receipt of this attempt as seen from this node: the path is not"
              " shared with the cluster", file=sys.stderr)  # fmt: skip
        return EXIT_NOT_SHARED
    if receipt.nonce != nonce:
        print(f"another submission is attempt {attempt} of {uri}; this one stops", file=sys.stderr)
        return FencedError.exit_code

    def stop(error: RayTrainWorkflowsError, elapsed_s: float) -> None:
        # from the watching thread: the main thread may be deep inside Ray, so end the process; Ray ends its actors
        print(f"stopping: {error.message}", file=sys.stderr, flush=True)
        _record(rundir, attempt, _end(error, elapsed_s))
        stop_tracking(error)
        _clean_up()  # os._exit runs none of what waits for the exit
        os._exit(error.exit_code)

    try:
        result = run_attempt(rundir, attempt, _connect_job, stop, signal_pipe())
    except RayTrainWorkflowsError as exc:
        print(getattr(exc, "details", "") or "", file=sys.stderr)
        print(f"{type(exc).__name__}: {exc.message}", file=sys.stderr)
        return exc.exit_code
    print(f"result: {result.reference().model_dump_json()}")
    return 0


if __name__ == "__main__":
    be_patient()
    code = main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(code)
