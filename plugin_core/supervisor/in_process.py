"""`execute(spec)`: runs the driver in the current process, for debugging, notebooks and unit tests."""

from __future__ import annotations

import logging
from typing import Any

from plugin_core.errors import InfrastructureError, RayTrainWorkflowsError, RestartError
from plugin_core.runs.directory import RunDir
from plugin_core.specs import StepSpec
from plugin_core.specs.results import StepResult
from plugin_core.storage.location import be_patient
from plugin_core.supervisor.preflight import check_functions_and_data
from plugin_core.supervisor.run_checkpoints import with_checkpoints

logger = logging.getLogger(__name__)


def execute(spec: StepSpec) -> StepResult:
    """Run a step in this process, on the Ray it is connected to or on one started for the duration.

    The run directory and the result are the same as with `run()`. There is no supervisor: when this process dies, so does
    the step (the next call resumes it).
    """
    import ray

    from plugin_core.driver.attempt import run_attempt

    rundir = RunDir.of(spec)
    spec, remarks = with_checkpoints(spec, here=True)
    for remark in remarks:
        logger.info("%s", remark)
    check_functions_and_data(spec, here=True)
    rundir.write_spec(spec)
    stored = rundir.result()
    if stored is not None:
        return stored
    started_here = not ray.is_initialized()
    patient_before = be_patient()

    def connect(runtime_env: dict[str, Any]) -> None:
        if started_here and not ray.is_initialized():
            ray.init(address="local", runtime_env=runtime_env or None)

    def stop(error: RayTrainWorkflowsError, elapsed_s: float) -> None:
        import _thread

        _thread.interrupt_main()

    def attempt() -> StepResult:
        number = rundir.latest() + 1
        if rundir.claim(number, "in-process", "in-process") is None:
            raise InfrastructureError(f"another process is running {rundir.uri}")
        return run_attempt(rundir, number, connect, stop)

    try:
        while True:
            try:
                return attempt()
            except RestartError as exc:
                logger.warning("%s", exc.message)
    finally:
        be_patient(patient_before)
        if started_here:
            ray.shutdown()
