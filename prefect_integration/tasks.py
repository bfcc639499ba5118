"""The Prefect tasks. Each takes a spec and a cluster and returns the typed result; `atrain` and the like are async.

A task extends `plugin_core.run`: it names the run after the flow run, shows events in the task run's log and as artifacts,
cancels the run when Prefect cancels, and does not retry errors that a retry cannot fix.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from prefect import Task, get_run_logger, task
from prefect.cache_policies import CachePolicy
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import TaskRunContext
from prefect.utilities.hashing import hash_objects

from plugin_core import engine
from plugin_core.engine import (
    CHAMPION,
    BatchInferResult,
    BatchInferSpec,
    EvaluateSpec,
    EvaluationResult,
    ModelVersion,
    RayJobResult,
    RayJobSpec,
    RayTrainWorkflowsError,
    RetrainResult,
    RetrainSpec,
    StepResult,
    StepSpec,
    TrainResult,
    TrainSpec,
    TuneResult,
    TuneSpec,
    as_spec,
    end_shared,
    fingerprint,
    make_record,
    run_sync,
    start_shared,
)
from prefect_integration.identity import Call, run_name_of
from prefect_integration.shared_cluster import share_until_the_end
from prefect_integration.step import Step, as_cluster

if TYPE_CHECKING:
    from plugin_core.engine import Cluster
    from prefect_integration.blocks import RayCluster

    Clusters = Cluster | RayCluster | Sequence[Cluster | RayCluster] | None

#: Accepted as a spec: a spec, a dict of its fields, or the path of a YAML or JSON file.
Given = StepSpec | Mapping[str, Any] | str


def retry_makes_sense(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    """`retry_condition_fn`: our errors say whether they are retryable; user exceptions and spec errors are not retried."""
    return bool(getattr(state.data, "retryable", True))


def result_key(context: TaskRunContext, parameters: dict[str, Any]) -> str | None:
    """Cache key for the same step in the same flow run: its run name and what it computes, without the cluster. Outside a
    flow nothing is cached; the run directory has the result."""
    return key_of(context, lambda: as_spec(parameters["spec"], StepSpec), parameters.get("key"))


def key_of(context: TaskRunContext, make: Callable[[], StepSpec], key: str | None) -> str | None:
    """The cache key of the step that `make` returns. None if it raises one of our errors, which the task itself raises."""
    call = Call.here()
    if not call.flow_runs:
        return f"raytrain-{context.task_run.id}"
    try:
        spec = make()
        # `Step` makes its own record (about 20 ms): this call ends before the task begins, and does not know the
        # cluster, whose `runtime_env` is part of the step's spec
        record, _, _ = make_record(spec)
        step = [call.root, run_name_of(spec, record, key, call), fingerprint(record)]
    except RayTrainWorkflowsError:
        return None
    return f"raytrain-{hashlib.sha256(repr(step).encode()).hexdigest()[:32]}"


def move_key(context: TaskRunContext, parameters: dict[str, Any]) -> str | None:
    """Cache key that makes an alias move happen once per flow run, however often the flow is retried: a second rollback
    would go further back, a second promotion would undo what others did in the meantime."""
    call = Call.here()
    if not call.flow_runs:
        return None
    return f"raytrain-move-{hash_objects(str(call.root), call.path, context.task.name, parameters, raise_on_failure=True)}"


KEPT: dict[str, Any] = {"retry_condition_fn": retry_makes_sense, "persist_result": True, "result_serializer": "json"}
_OPTIONS: dict[str, Any] = {**KEPT, "cache_policy": CachePolicy.from_cache_key_fn(result_key)}
_MOVE: dict[str, Any] = {**KEPT, "cache_policy": CachePolicy.from_cache_key_fn(move_key)}


@task(name="run_step", **_OPTIONS)
def run_step(spec: Given, cluster: Clusters = None, key: str | None = None) -> StepResult:
    """Run a step of any kind; each of the other tasks does this for the kind it is named after.

    :param spec: the step: a spec, a dict of its fields, or the path of a YAML or JSON file.
    :param cluster: a `RayCluster` block, `plugin_core.RayCluster(address)`, or a `KubeRayCluster`; a list of these, in the
        order of preference (see `plugin_core.FallbackCluster`); None: the embedded one.
    :param key: names the run within the flow run; None: the kind and a hash of the fields.
    """
    return _run(spec, StepSpec, cluster, key)


@task(name="run_step", **_OPTIONS)
async def arun_step(spec: Given, cluster: Clusters = None, key: str | None = None) -> StepResult:
    """Async version of `run_step`."""
    return await _arun(spec, StepSpec, cluster, key)


@task(name="train", **_OPTIONS)
def train(spec: TrainSpec | Given, cluster: Clusters = None, key: str | None = None) -> TrainResult:
    """Train on `cluster` (default: the embedded local one); `key` names the step within its flow (see `identity.named`)."""
    return cast(TrainResult, _run(spec, TrainSpec, cluster, key))


@task(name="evaluate", **_OPTIONS)
def evaluate(spec: EvaluateSpec | Given, cluster: Clusters = None, key: str | None = None) -> EvaluationResult:
    """Evaluate a checkpoint; a missed threshold sets the result's `passed` to false but does not fail the task."""
    return cast(EvaluationResult, _run(spec, EvaluateSpec, cluster, key))


@task(name="tune", **_OPTIONS)
def tune(spec: TuneSpec | Given, cluster: Clusters = None, key: str | None = None) -> TuneResult:
    """Search for the best training; `best_train_spec(result)` returns the spec to continue training with."""
    return cast(TuneResult, _run(spec, TuneSpec, cluster, key))


@task(name="retrain", **_OPTIONS)
def retrain(spec: RetrainSpec | Given, cluster: Clusters = None, key: str | None = None) -> RetrainResult:
    """Train, evaluate against the champion and promote if better, in one step."""
    return cast(RetrainResult, _run(spec, RetrainSpec, cluster, key))


@task(name="batch_infer", **_OPTIONS)
def batch_infer(spec: BatchInferSpec | Given, cluster: Clusters = None, key: str | None = None) -> BatchInferResult:
    """Predict over a dataset with a checkpoint and write files."""
    return cast(BatchInferResult, _run(spec, BatchInferSpec, cluster, key))


@task(name="ray_job", **_OPTIONS)
def ray_job(spec: RayJobSpec | Given, cluster: Clusters = None, key: str | None = None) -> RayJobResult:
    """Run a function or a command on the cluster; the result's `load()` returns what the function returned."""
    return cast(RayJobResult, _run(spec, RayJobSpec, cluster, key))


@task(name="train", **_OPTIONS)
async def atrain(spec: TrainSpec | Given, cluster: Clusters = None, key: str | None = None) -> TrainResult:
    """Async version of `train`."""
    return cast(TrainResult, await _arun(spec, TrainSpec, cluster, key))


@task(name="evaluate", **_OPTIONS)
async def aevaluate(spec: EvaluateSpec | Given, cluster: Clusters = None, key: str | None = None) -> EvaluationResult:
    """Async version of `evaluate`."""
    return cast(EvaluationResult, await _arun(spec, EvaluateSpec, cluster, key))


@task(name="tune", **_OPTIONS)
async def atune(spec: TuneSpec | Given, cluster: Clusters = None, key: str | None = None) -> TuneResult:
    """Async version of `tune`."""
    return cast(TuneResult, await _arun(spec, TuneSpec, cluster, key))


@task(name="retrain", **_OPTIONS)
async def aretrain(spec: RetrainSpec | Given, cluster: Clusters = None, key: str | None = None) -> RetrainResult:
    """Async version of `retrain`."""
    return cast(RetrainResult, await _arun(spec, RetrainSpec, cluster, key))


@task(name="batch_infer", **_OPTIONS)
async def abatch_infer(spec: BatchInferSpec | Given, cluster: Clusters = None, key: str | None = None) -> BatchInferResult:
    """Async version of `batch_infer`."""
    return cast(BatchInferResult, await _arun(spec, BatchInferSpec, cluster, key))


@task(name="ray_job", **_OPTIONS)
async def aray_job(spec: RayJobSpec | Given, cluster: Clusters = None, key: str | None = None) -> RayJobResult:
    """Async version of `ray_job`."""
    return cast(RayJobResult, await _arun(spec, RayJobSpec, cluster, key))


@task(name="promote", **_MOVE)
def promote(
    result: Any,
    name: str,
    alias: str = CHAMPION,
    registry: str | None = None,
    dataset: str | None = None,
    force: bool = False,
    allow_older: bool = False,
) -> ModelVersion:
    """`plugin_core.promote`: point a model's alias to the result's checkpoint. Safe to retry."""
    version = engine.promote(result, name, alias, registry=registry, dataset=dataset, force=force, allow_older=allow_older)
    if version.kept:
        get_run_logger().warning(version.kept)
    else:
        get_run_logger().info("%s", engine.promoted(version, alias))
    return version


@task(name="rollback", **{**_MOVE, "retry_condition_fn": lambda *_: False})
def rollback(name: str, alias: str = CHAMPION, registry: str | None = None) -> ModelVersion:
    """`plugin_core.rollback`: point the alias back to its previous version. Never retried, since a retry would go further
    back."""
    return engine.rollback(name, alias, registry=registry)


@task(name="start_cluster", retry_condition_fn=retry_makes_sense)
def start_cluster(cluster: Clusters) -> str:
    """Start the cluster that the steps of this flow run share, and wait until it is ready, even if it is queued.
    The first step would do the same; this task makes it visible in the flow. The cluster is deleted at the end of the
    flow run, or by `end_cluster`."""
    return run_sync(start_shared(_shared(cluster), get_run_logger().info))


@task(name="end_cluster", retry_condition_fn=retry_makes_sense)
def end_cluster(cluster: Clusters) -> None:
    """Delete the shared cluster before the flow run ends, unless a step is still on it."""
    run_sync(end_shared(_shared(cluster)))


def _shared(cluster: Any) -> Cluster:
    return share_until_the_end(as_cluster(cluster)[0], Call.here().root)


def _run(spec: Any, accepted: type[StepSpec], cluster: Any, key: str | None) -> StepResult:
    return Step(spec, accepted, cluster, key, get_run_logger()).run_sync().reference()


async def _arun(spec: Any, accepted: type[StepSpec], cluster: Any, key: str | None) -> StepResult:
    return (await Step(spec, accepted, cluster, key, get_run_logger()).run_async()).reference()
