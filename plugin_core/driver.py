"""The driver: `python -m plugin_core.driver RUN_URI ATTEMPT NONCE`, one attempt of a run, on the cluster.

It obeys the run directory: it stops when a higher attempt exists (the fence), when cancel is wanted, and when the step's
time is over. It writes the heartbeat, the attempt's end and, last of all, the result.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from plugin_core.errors import (
    EXIT_NOT_SHARED,
    FencedError,
    RayTrainWorkflowsError,
    StepCancelledError,
    StepError,
    StepTimeoutError,
    StorageError,
)
from plugin_core.results import AnyResult
from plugin_core.rundir import AttemptEnd, Heartbeat, RunDir
from plugin_core.sources import unpack
from plugin_core.specs import Limits, TrainSpec
from plugin_core.steps import StepContext, run_step

#: Seconds between two looks at the run directory, each of which moves the heartbeat.
BEAT_S = 2.0
#: Ray's default of 2.0 s makes every `report()` take 2 s (measured). One controller polls all workers, so it backs off
#: with their number.
HEALTH_CHECK_S = 0.1
HEALTH_CHECK_S_PER_WORKER = 0.005

logger = logging.getLogger("raytrain.driver")


class Watch:
    """The thread that beats, and ends the process when the run directory says so."""

    def __init__(self, rundir: RunDir, attempt: int, limits: Limits, stop: Callable[[RayTrainWorkflowsError], None]):
        self._rundir = rundir
        self._attempt = attempt
        self._limits = limits
        self._stop = stop
        self._started = time.monotonic()
        self._spent_before = sum(end.elapsed_s for n in range(1, attempt) if (end := rundir.end(n)))
        self._counter = 0
        self._closed = threading.Event()
        self.phase = "starting"
        self._thread = threading.Thread(target=self._loop, daemon=True, name="watch")

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._closed.set()
        self._thread.join(timeout=10)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def look(self) -> None:
        """Raise where this attempt must not go on."""
        last = self._rundir.receipts()[-1:]
        if last and last[0] > self._attempt:
            raise FencedError(f"attempt {last[0]} owns the run now; attempt {self._attempt} stops")
        if self._rundir.wanted() == "cancel":
            raise StepCancelledError("the run was cancelled")
        limit = self._limits.timeout_s
        if limit is not None and self._spent_before + self.elapsed_s > limit:
            raise StepTimeoutError(f"the step took longer than limits.timeout_s ({limit:g} s)")

    def _loop(self) -> None:
        while not self._closed.wait(BEAT_S if self._counter else 0):
            try:
                self._counter += 1
                self._rundir.beat(self._attempt, Heartbeat(self._counter, self.phase, round(self.elapsed_s, 1)))
                self.look()
            except StorageError as exc:
                logger.warning("%s; training goes on", exc.message)
            except StepError as exc:
                self._stop(exc)
                return


def run_attempt(
    rundir: RunDir, attempt: int, connect: Callable[[dict[str, Any]], None], stop: Callable[[RayTrainWorkflowsError], None]
) -> AnyResult:
    """Run one attempt in this process and record how it ended. `connect` joins a Ray with the runtime_env it is given."""
    from plugin_core.failures import classify

    spec = rundir.read_spec()
    with Watch(rundir, attempt, spec.limits, stop) as watch:
        try:
            watch.look()
            _set_ray_defaults(spec)
            connect(_ship_sources(rundir, spec.runtime_env))
            context = StepContext(
                spec=spec,
                rundir=rundir,
                attempt=attempt,
                payload=rundir.read_payload(),
                set_phase=lambda phase: setattr(watch, "phase", phase),
            )
            result = run_step(context)
            watch.look()
            rundir.write_result(result)
        except Exception as exc:
            error = classify(exc)
            rundir.record_end(attempt, _end(error, watch.elapsed_s))
            if error is exc:
                raise
            raise error from exc
        rundir.record_end(attempt, AttemptEnd("succeeded", elapsed_s=watch.elapsed_s))
        return result


def _end(error: RayTrainWorkflowsError, elapsed_s: float) -> AttemptEnd:
    return AttemptEnd(error.outcome, error.message, getattr(error, "details", ""), round(elapsed_s, 1))


def _set_ray_defaults(spec: Any) -> None:
    workers = spec.scaling_config.worker_range[1] if isinstance(spec, TrainSpec) else 1
    interval = max(HEALTH_CHECK_S, HEALTH_CHECK_S_PER_WORKER * workers)
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", f"{interval:g}")
    # otherwise every line that a worker prints appears twice in the job's log
    os.environ.setdefault("RAY_TRAIN_ENABLE_PRINT_PATCH", "0")


def _ship_sources(rundir: RunDir, runtime_env: dict[str, Any]) -> dict[str, Any]:
    """Unpack the modules that travel with the step; returns the runtime_env that takes them to every Ray worker."""
    shipped = rundir.read_sources()
    if shipped is None:
        return {}
    folder = Path(tempfile.mkdtemp(prefix="raytrain-code-"))
    modules = unpack(shipped, folder)
    sys.path.insert(0, str(folder))
    own = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR") or "{}").get("runtime_env", {})
    return {"py_modules": [*modules, *own.get("py_modules", runtime_env.get("py_modules", []))]}


def _connect_job(runtime_env: dict[str, Any]) -> None:
    os.environ["RAY_OVERRIDE_JOB_RUNTIME_ENV"] = "1"
    import ray

    ray.init(address="auto", runtime_env=runtime_env or None, log_to_driver=True)


def main(uri: str, attempt: int, nonce: str) -> int:
    """One attempt as a Ray job; the exit code tells the class of error."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    rundir = RunDir.at(uri)
    receipt = rundir.receipt(attempt)
    if receipt is None:
        print(f"run_config.storage_path: {uri} holds no receipt of this attempt as seen from this node: the path is not"
              " shared with the cluster", file=sys.stderr)  # fmt: skip
        return EXIT_NOT_SHARED
    if receipt.nonce != nonce:
        print(f"another submission is attempt {attempt} of {uri}; this one stops", file=sys.stderr)
        return FencedError.exit_code

    def stop(error: RayTrainWorkflowsError) -> None:
        # from the watching thread: the main thread may be deep inside Ray, so end the process; Ray ends its actors
        print(f"stopping: {error.message}", file=sys.stderr, flush=True)
        if not isinstance(error, FencedError):
            try:
                rundir.record_end(attempt, _end(error, 0.0))
            except StorageError as exc:
                print(exc.message, file=sys.stderr, flush=True)
        os._exit(error.exit_code)

    try:
        result = run_attempt(rundir, attempt, _connect_job, stop)
    except RayTrainWorkflowsError as exc:
        print(getattr(exc, "details", "") or "", file=sys.stderr)
        print(f"{type(exc).__name__}: {exc.message}", file=sys.stderr)
        return exc.exit_code
    print(f"result: {result.reference().model_dump_json()}")
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(code)
