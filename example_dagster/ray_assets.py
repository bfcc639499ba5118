"""A Dagster adapter on the engine API: an asset whose materialization is a step on a Ray cluster.

    digits = ray_step_asset(TrainSpec(train_loop_per_worker=train_loop, run_config=RunConfig(name="digits")))
    defs = Definitions(assets=[digits])

The Ray job outlives Dagster's process. A run that is killed leaves it alone, and the next materialization attaches to it;
terminating the run cancels it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetsDefinition,
    DagsterExecutionInterruptedError,
    Failure,
    MaterializeResult,
    MetadataValue,
    asset,
)

from plugin_core.engine import (
    Cluster,
    Line,
    LocalCluster,
    RayTrainWorkflowsError,
    RunDir,
    StepResult,
    StepSpec,
    Supervisor,
    as_spec,
    cancel,
    newest_run,
    prepare,
    run_name,
    run_sync,
)

#: What Dagster calls the run that a re-execution began with.
ROOT_RUN = "dagster/root_run_id"


def ray_step_asset(
    spec: StepSpec | Mapping[str, Any] | str, cluster: Cluster | None = None, **options: Any
) -> AssetsDefinition:
    """An asset that runs a step.

    `spec`: the spec, a dict of its fields, or the path of a YAML or JSON file. `cluster` defaults to the embedded one.
    `options` are those of `dagster.asset`; the asset's name defaults to the run's.
    """
    step, where = as_spec(spec, StepSpec), cluster or LocalCluster()
    options.setdefault("name", step.run_config.name)

    @asset(**options)
    def materialize(context):  # type: ignore[no-untyped-def]  # Dagster takes no annotation that is a string
        return MaterializeResult(metadata=_metadata(_follow(context, step, where)))

    return materialize


def _follow(context: AssetExecutionContext, spec: StepSpec, cluster: Cluster) -> StepResult:
    spec = _named(context, spec)
    # a re-execution is the same request; materializing a finished step again begins the next generation of its run
    request = context.run.tags.get(ROOT_RUN, context.run_id)
    try:
        rundir = run_sync(prepare(spec, cluster, request, _writer(context.log)))
        log = _writer(context.log)
        result = run_sync(Supervisor(rundir, cluster, log=log, metadata={"dagster": context.run_id}).run())
    except DagsterExecutionInterruptedError:
        # Dagster terminates the run; a process that is killed never comes here, and its job goes on
        context.log.info("%s", cancel(newest_run(spec), cluster))
        raise
    except RayTrainWorkflowsError as exc:
        raise Failure(
            f"{type(exc).__name__}: {exc.message}", {"details": exc.details}, allow_retries=exc.retryable
        ) from None
    RunDir.at(result.run.uri).deliver(request)
    return result


def _named(context: AssetExecutionContext, spec: StepSpec) -> StepSpec:
    """The spec under a name that every run for the same asset and partition shares: by it the next one finds this job."""
    key: AssetKey = context.asset_key
    parts = [spec.run_config.name or "-".join(key.path), *([context.partition_key] if context.has_partition_key else [])]
    return spec.with_name(run_name(*parts) if len(parts) > 1 else parts[0])


def _writer(log: logging.Logger) -> Any:
    def write(line: Line) -> None:
        for text in line.lines or [line.text]:
            log.log(line.level, "%s", text)

    return write


def _metadata(result: StepResult) -> dict[str, Any]:
    checkpoint = getattr(result, "checkpoint", None)
    links = {name: MetadataValue.url(url) for name, url in result.tracking.items()}
    place = {"checkpoint": MetadataValue.path(checkpoint.uri)} if checkpoint is not None else {}
    return {"run": MetadataValue.path(result.run.uri), "metrics": MetadataValue.json(result.metrics), **place, **links}
