"""The tasks. Each takes a spec and a cluster and returns the typed result; the core does the work.

What a task adds to `plugin_core.run`: the run's name out of the flow run, the core's events in the task run's log, a cancel
in Prefect as a cancel of the run, and no retry of an error that a retry cannot cure.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar, cast

from prefect import Task, get_run_logger, task
from prefect.cache_policies import CachePolicy
from prefect.client.schemas.objects import TaskRun
from prefect.exceptions import TerminationSignal
from prefect.states import State

from plugin_core.clusters import Cluster, LocalCluster
from plugin_core.errors import RayTrainWorkflowsError
from plugin_core.results import AnyResult, BatchInferResult, EvaluationResult, TrainResult
from plugin_core.rundir import RunDir
from plugin_core.specs import BatchInferSpec, EvaluateSpec, StepSpec, TrainSpec
from plugin_core.supervisor import Event, cancel, run
from prefect_integration.identity import cancel_requested, named

SpecT = TypeVar("SpecT", bound=StepSpec)


def retry_makes_sense(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    """`retry_condition_fn`: errors of ours say it themselves; a user's exception and a wrong spec are not tried again."""
    return bool(getattr(state.data, "retryable", True))


#: Stored for the task run itself and for no other: the run directory is the memory. A task that is called again with the
#: same name and spec returns the stored result at once, or goes on with the live job; a cache of Prefect's own would
#: only be a second truth. (With NO_CACHE Prefect does not store a result at all.)
_STORE_ONLY = CachePolicy.from_cache_key_fn(lambda context, parameters: f"raytrain-{context.task_run.id}")

_OPTIONS: dict[str, Any] = {
    "retry_condition_fn": retry_makes_sense,
    "persist_result": True,
    "result_serializer": "json",
    "cache_policy": _STORE_ONLY,
}


@task(name="train", **_OPTIONS)
def train(spec: TrainSpec, cluster: Cluster | None = None, key: str | None = None) -> TrainResult:
    """Train on `cluster` (default: the embedded local one); `key` names the step within its flow (see `identity.named`)."""
    return cast(TrainResult, _run(spec, cluster, key))


@task(name="evaluate", **_OPTIONS)
def evaluate(spec: EvaluateSpec, cluster: Cluster | None = None, key: str | None = None) -> EvaluationResult:
    """Evaluate a checkpoint; a broken threshold makes the result's `passed` false, and not the task fail."""
    return cast(EvaluationResult, _run(spec, cluster, key))


@task(name="batch_infer", **_OPTIONS)
def batch_infer(spec: BatchInferSpec, cluster: Cluster | None = None, key: str | None = None) -> BatchInferResult:
    """Predict over a dataset with a checkpoint and write parquet."""
    return cast(BatchInferResult, _run(spec, cluster, key))


def _run(spec: StepSpec, cluster: Cluster | None, key: str | None) -> AnyResult:
    logger = get_run_logger()

    def show(event: Event) -> None:
        for line in event.text.splitlines():
            logger.info(line)

    spec, where = named(spec, key), cluster or LocalCluster()
    rundir = RunDir.of(spec)
    logger.info("run directory: %s", rundir.uri)
    try:
        return run(spec, where, show).reference()
    except (KeyboardInterrupt, asyncio.CancelledError, TerminationSignal) as exc:
        # a SIGTERM without a cancel (a pod evicted, a worker restarted) is a crash: the job goes on and a retry finds it
        if not isinstance(exc, TerminationSignal) or cancel_requested():
            logger.warning("cancelling %s", rundir.uri)
            _cancel(rundir, where)
        raise


def _cancel(rundir: RunDir, cluster: Cluster) -> None:
    try:
        outcome = cancel(rundir, cluster)
    except RayTrainWorkflowsError as exc:
        outcome = exc.message
    get_run_logger().warning("%s: %s", rundir.uri, outcome)
