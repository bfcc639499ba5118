"""Flow hooks: what a runner does for the steps of a flow run whose process is gone.

    @flow(on_cancellation=[cancel_ray_jobs], on_crashed=[report_ray_jobs])

Prefect calls them in the runner's process; steps, including those of subflows, are found by just the flow run's id.
"""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    ArtifactFilterType,
    FlowRunFilter,
    FlowRunFilterParentFlowRunId,
)
from prefect.logging.loggers import flow_run_logger

from plugin_core.engine import (
    Cluster,
    RayTrainWorkflowsError,
    RunDir,
    SpecError,
    acancel,
    find_cluster,
    find_fallback,
    run_sync,
)
from prefect_integration.visibility import STEP


@dataclass(frozen=True)
class StepOfFlowRun:
    """A step called by a flow run: its run directory and cluster."""

    rundir: RunDir
    #: the cluster block's name, or the core's reference to the cluster; several in `clusters`
    where: dict[str, Any]

    def cluster(self) -> Cluster:
        """The step's cluster. Raises SpecError if this installation does not accept it from an artifact (see
        `clusters.find`)."""
        return find_fallback(self.where, _cluster) if "clusters" in self.where else _cluster(self.where)


def _cluster(where: dict[str, Any]) -> Cluster:
    if name := where.get("block"):
        from prefect_integration.blocks import RayCluster as Block

        cluster = cast(Block, Block.load(name)).get_cluster()  # synchronous here
        return cluster.of_workflow(str(where.get("workflow") or ""))
    return find_cluster(where)


def steps_of(flow_run_id: UUID) -> list[StepOfFlowRun]:
    """Return the steps called by this flow run and its subflows, each once. Raises what Prefect's client raises."""
    with get_client(sync_client=True) as client:
        ids = [flow_run_id, *_subflows(client, flow_run_id)]
        kept = client.read_artifacts(
            artifact_filter=ArtifactFilter(
                type=ArtifactFilterType(any_=[STEP]), flow_run_id=ArtifactFilterFlowRunId(any_=ids)
            )
        )
    by_uri = {step.rundir.uri: step for artifact in kept if (step := _step(artifact.data)) is not None}
    return list(by_uri.values())


def _step(data: Any) -> StepOfFlowRun | None:
    """Parse a step from an artifact; None if it is not one. Anybody with write access to Prefect's API can create one."""
    try:
        found = json.loads(data)
        return StepOfFlowRun(RunDir.at(str(found["run"])), dict(found["cluster"]))
    except (ValueError, TypeError, KeyError) as exc:
        logging.getLogger(__name__).warning("an artifact of type %s is not a step: %s", STEP, exc)
        return None


def cancel_ray_jobs(flow: Any, flow_run: Any, state: Any) -> None:
    """For `on_cancellation` (or `on_crashed`, if a crash should stop the jobs): stop the jobs of the flow run's steps and
    wait until their processes are gone. Also works if a cluster is unreachable: drivers read the cancel from storage."""
    logger = flow_run_logger(flow_run, flow)
    for step in steps_of(flow_run.id):
        try:
            outcome = _cancel(step)
        except RayTrainWorkflowsError as exc:
            outcome = exc.message
        logger.info("%s: %s", step.rundir.uri, outcome)


def report_ray_jobs(flow: Any, flow_run: Any, state: Any) -> None:
    """For `on_crashed`: log which jobs are still running, and how to attach to them or stop them."""
    logger = flow_run_logger(flow_run, flow)
    for step in steps_of(flow_run.id):
        try:
            over = step.rundir.result() is not None or step.rundir.end(step.rundir.latest()) is not None
        except RayTrainWorkflowsError as exc:
            logger.warning("%s: %s", step.rundir.uri, exc.message)
            continue
        if not over:
            logger.warning(
                "%s is still running: `prefect flow-run retry %s` attaches to it, `raytrain cancel %s` stops it",
                step.rundir.uri,
                flow_run.id,
                shlex.quote(step.rundir.uri),
            )


def _cancel(step: StepOfFlowRun) -> str:
    try:
        cluster = step.cluster()
    except SpecError as exc:
        # no cluster may be queried, but the driver obeys the cancel in the run directory
        if step.rundir.result() is None:
            step.rundir.cancel()
        return f"cancel recorded; its driver stops by itself: {exc.message}"
    return run_sync(acancel(step.rundir, cluster))


def _subflows(client: SyncPrefectClient, flow_run_id: UUID) -> Iterator[UUID]:
    parents = FlowRunFilterParentFlowRunId(any_=[flow_run_id])
    for run in client.read_flow_runs(flow_run_filter=FlowRunFilter(parent_flow_run_id=parents)):
        yield run.id
        yield from _subflows(client, run.id)
