"""The driver: `python -m plugin_core.driver RUN_URI ATTEMPT NONCE`, one attempt of a run, on the cluster.

It obeys the run directory: it stops when a higher attempt exists (the fence), when cancel is wanted, and when the step's
time is over. It writes the heartbeat, the attempt's end and, last of all, the result.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from plugin_core.errors import (
    EXIT_NOT_SHARED,
    TERMINATED,
    FencedError,
    InfrastructureError,
    RayTrainWorkflowsError,
    StepCancelledError,
    StepError,
    StepTimeoutError,
    StorageError,
)
from plugin_core.fence import Fence
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


class Terminated(StepError):
    """Somebody sent this process a SIGTERM; what it means is for the supervisor to tell."""

    outcome = TERMINATED


class Watch:
    """The thread that beats, and ends the process when the run directory, or a signal, says so.

    `signals`: a file descriptor from which a byte can be read once a SIGTERM has come (see `_signal_pipe`).
    """

    def __init__(
        self,
        rundir: RunDir,
        attempt: int,
        limits: Limits,
        stop: Callable[[RayTrainWorkflowsError], None],
        signals: int | None = None,
    ):
        self._rundir = rundir
        self._attempt = attempt
        self._limits = limits
        self._stop = stop
        self._fence = Fence(rundir.uri, attempt)
        self._started = time.monotonic()
        self._spent_before = sum(end.elapsed_s for n in range(1, attempt) if (end := rundir.end(n)))
        self._interest = ("", self._started)
        self._counter = 0
        self._wake, self._closing = os.pipe()
        self._watched = [self._wake] if signals is None else [self._wake, signals]
        self.phase = "starting"
        self._thread = threading.Thread(target=self._loop, daemon=True, name="watch")

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._closing)
        self._thread.join(timeout=10)
        if not self._thread.is_alive():
            os.close(self._wake)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def look(self) -> None:
        """Raise where this attempt must not go on."""
        self._fence.check()
        if self._rundir.intent().cancel_through >= self._attempt:
            raise StepCancelledError("the run was cancelled")
        limit = self._limits.timeout_s
        if limit is not None and self._spent_before + self.elapsed_s > limit:
            raise StepTimeoutError(f"the step took longer than limits.timeout_s ({limit:g} s)")
        orphan = self._limits.orphan_timeout_s
        if orphan is not None and self._alone_for_s() > orphan:
            raise InfrastructureError(f"no orchestrator showed interest for limits.orphan_timeout_s ({orphan:g} s)")

    def _alone_for_s(self) -> float:
        sign = self._rundir.interest()
        if sign != self._interest[0]:
            self._interest = (sign, time.monotonic())
        return time.monotonic() - self._interest[1]

    def _loop(self) -> None:
        while True:
            ready, _, _ = select.select(self._watched, [], [], BEAT_S if self._counter else 0)
            if self._wake in ready:
                return
            try:
                self.look()
                if ready:
                    raise Terminated("the driver was told to stop (SIGTERM)")
                self._counter += 1
                self._rundir.beat(self._attempt, Heartbeat(self._counter, self.phase, round(self.elapsed_s, 1)))
            except StorageError as exc:
                if ready:
                    self._stop(Terminated(f"the driver was told to stop (SIGTERM); {exc.message}"))
                    return
                logger.warning("%s; training goes on", exc.message)
            except StepError as exc:
                self._stop(exc)
                return


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


def _set_ray_defaults(spec: Any) -> None:
    workers = spec.scaling_config.worker_range[1] if isinstance(spec, TrainSpec) else 1
    interval = max(HEALTH_CHECK_S, HEALTH_CHECK_S_PER_WORKER * workers)
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", f"{interval:g}")
    scheduling = spec.limits.scheduling_timeout_s
    if scheduling is not None:
        # the controller asks for the workers' resources this long before it looks up (Ray's default is 60 s)
        os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", f"{min(60.0, scheduling):g}")
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


def _signal_pipe() -> int:
    """A descriptor that becomes readable on SIGTERM, at once, whatever the main thread is doing.

    Python runs its handlers in the main thread only, between two steps of its own; but the number of the signal is
    written to
    this pipe by the interpreter's C handler. Ray sets a SIGTERM handler of its own later, which changes nothing here.
    """
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    return readable


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

    def stop(error: RayTrainWorkflowsError, elapsed_s: float) -> None:
        # from the watching thread: the main thread may be deep inside Ray, so end the process; Ray ends its actors
        print(f"stopping: {error.message}", file=sys.stderr, flush=True)
        _record(rundir, attempt, _end(error, elapsed_s))
        os._exit(error.exit_code)

    try:
        result = run_attempt(rundir, attempt, _connect_job, stop, _signal_pipe())
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
