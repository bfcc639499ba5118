"""A Ray job: starts its process where its resources are, and restarts it when it is lost.

The process is a Ray actor, not the driver. So the driver's heartbeat and watchdog keep going whatever a user's code
does to its own process, and that process runs on a node with the GPUs and memory it needs.
"""

from __future__ import annotations

import json
import logging
import os
from typing import TYPE_CHECKING, Any

from plugin_core.clusters.secrets import VARIABLE
from plugin_core.driver import handed_over
from plugin_core.driver.ray_job.process import Ended, JobProcess
from plugin_core.driver.resources import reserved
from plugin_core.errors import InfrastructureError, UserCodeError
from plugin_core.errors.classify import one_line
from plugin_core.runs.saved_state import Start
from plugin_core.specs import RayJobSpec
from plugin_core.specs.json_values import is_number
from plugin_core.specs.results import REFERENCE_BYTES, VALUE, RayJobResult

if TYPE_CHECKING:
    from plugin_core.runs.context import StepContext

#: The most bytes of a value that stays in the result; the rest of a reference is names and links.
INLINE_BYTES = REFERENCE_BYTES // 2
#: sysexits.h: the command itself says that a later try may succeed.
EX_TEMPFAIL = 75

logger = logging.getLogger("raytrain.driver")


def run(context: StepContext) -> RayJobResult:
    spec = context.spec
    assert isinstance(spec, RayJobSpec)
    if spec.function is not None:
        return _result(context, _started(context, spec, "call", context.function("function"), spec.arguments))
    ended: Ended = _started(context, spec, "run", spec.command, _for_a_driver())
    if ended.code:
        _raise(ended)
    return _result(context, "null")


def _started(context: StepContext, spec: RayJobSpec, method: str, *arguments: Any) -> Any:
    """Call a method of a `JobProcess`. If the process is lost, call it in a new one, up to `max_failures` times."""
    import ray
    from ray.exceptions import RayError, RayTaskError

    most = spec.run_config.failure_config.max_failures
    own = {"CPU": spec.num_cpus, "GPU": spec.num_gpus, **spec.resources}
    for start in range(1, 1 << 31):
        begun = Start(context.rundir.uri, context.attempt, start)
        begun.begin()
        # each start reserves anew: the node of the last one may be gone, and the wait for another has the same limit
        with reserved(own, spec.limits.scheduling_timeout_s) as strategy:
            context.set_phase("running")
            # an actor, not a task: whoever cancels the run waits until its actors are dead
            process = ray.remote(JobProcess).options(
                num_cpus=spec.num_cpus,
                num_gpus=spec.num_gpus,
                memory=spec.resources.get("memory"),
                resources={name: amount for name, amount in spec.resources.items() if name != "memory"},
                scheduling_strategy=strategy,
            )
            actor = process.remote()
            try:
                found = ray.get(getattr(actor, method).remote(begun, *arguments))
            except RayError as exc:
                if isinstance(exc, RayTaskError):
                    raise
                lost: Exception = exc
            else:
                if not (isinstance(found, Ended) and found.signal):
                    return found
                lost = InfrastructureError(f"the command was killed by {found.signal}", found.tail)
            finally:
                ray.kill(actor)
        if 0 <= most < start:
            raise lost
        allowed = f" of {most}" if most >= 0 else ""
        logger.warning("the step's process was lost: %s; failure %d%s, starting it again", _why(lost), start, allowed)
        context.set_phase("restarting")
    raise AssertionError("unreachable")


def _why(lost: Exception) -> str:
    return lost.message if isinstance(lost, InfrastructureError) else one_line(lost)


def _raise(ended: Ended) -> None:
    said = f"command: it exited with {ended.code}"
    if ended.code == EX_TEMPFAIL:
        raise InfrastructureError(f"{said}, EX_TEMPFAIL: it asks to be tried again", ended.tail)
    raise UserCodeError(f"{said}; expected 0", ended.tail)


def _for_a_driver() -> dict[str, str]:
    """Variables that make a program's `ray.init()` work for this job: on its cluster, with its runtime_env."""
    import ray

    job = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR") or "{}")
    if VARIABLE in os.environ and job.get("runtime_env") is not None:
        job["runtime_env"] = {**job["runtime_env"], **handed_over.workers_runtime_env(job["runtime_env"])}
    given = {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(job)} if job else {}
    return {"RAY_ADDRESS": ray.get_runtime_context().gcs_address, **given}


def _result(context: StepContext, value: str) -> RayJobResult:
    """`value`: JSON, as the process returned it."""
    found = json.loads(value)
    numbers = found.items() if isinstance(found, dict) else ()
    place = None
    if len(value) > INLINE_BYTES:
        place = context.rundir.location.child(*VALUE)
        place.write(value.encode())
    return RayJobResult(
        run=context.run,
        value=found if place is None else None,
        value_uri=None if place is None else place.uri,
        output=Start(context.rundir.uri, context.attempt, 1).output.uri,
        metrics={name: number for name, number in numbers if is_number(number)},
    )
