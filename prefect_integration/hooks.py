"""Hooks for a flow: what a runner does for the steps of a flow run whose process is gone.

    @flow(on_cancellation=[cancel_ray_jobs], on_crashed=[report_ray_jobs])

Prefect calls them in the runner's process; the steps are found by the flow run's id alone, also those of its subflows.
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

from plugin_core.engine import Cluster, RayTrainWorkflowsError, RunDir, SpecError, acancel, find_cluster, run_sync
from prefect_integration.visibility import STEP


@dataclass(frozen=True)
class StepOfFlowRun:
    """A step that a flow run called: its run directory, and where it runs."""

    rundir: RunDir
    #: its block's name, or the core's reference to it
    where: dict[str, Any]

    def cluster(self) -> Cluster:
        """Raises SpecError where it is not one that this installation takes from an artifact (see `clusters.find`)."""
        if name := self.where.get("block"):
            from prefect_integration.blocks import RayCluster as Block

            return cast(Block, Block.load(name)).get_cluster()  # synchronous here
        return find_cluster(self.where)


def steps_of(flow_run_id: UUID) -> list[StepOfFlowRun]:
    """The steps that this flow run and its subflows called, each once. Raises what Prefect's client raises."""
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
    """Of an artifact; None where it holds no step: whoever may write to Prefect's API can have made it."""
    try:
        found = json.loads(data)
        return StepOfFlowRun(RunDir.at(str(found["run"])), dict(found["cluster"]))
    except (ValueError, TypeError, KeyError) as exc:
        logging.getLogger(__name__).warning("an artifact of type %s holds no step: %s", STEP, exc)
        return None


def cancel_ray_jobs(flow: Any, flow_run: Any, state: Any) -> None:
    """For `on_cancellation` (or `on_crashed`, where a crash is to stop the jobs): stop each job of the flow run's steps and
    wait until its processes are gone. A cluster that cannot be reached does not matter: the drivers read the intent."""
    logger = flow_run_logger(flow_run, flow)
    for step in steps_of(flow_run.id):
        try:
            outcome = _cancel(step)
        except RayTrainWorkflowsError as exc:
            outcome = exc.message
        logger.info("%s: %s", step.rundir.uri, outcome)


def report_ray_jobs(flow: Any, flow_run: Any, state: Any) -> None:
    """For `on_crashed`: say which jobs go on, and how to go on with them or stop them."""
    logger = flow_run_logger(flow_run, flow)
    for step in steps_of(flow_run.id):
        try:
            over = step.rundir.result() is not None or step.rundir.end(step.rundir.latest()) is not None
        except RayTrainWorkflowsError as exc:
            logger.warning("%s: %s", step.rundir.uri, exc.message)
            continue
        if not over:
            logger.warning(
                "%s goes on: `prefect flow-run retry %s` attaches to it, `raytrain cancel %s` stops it",
                step.rundir.uri,
                flow_run.id,
                shlex.quote(step.rundir.uri),
            )


def _cancel(step: StepOfFlowRun) -> str:
    try:
        cluster = step.cluster()
    except SpecError as exc:
        # nobody may be asked; the driver obeys what stands in the run directory
        if step.rundir.result() is None:
            step.rundir.cancel()
        return f"its driver is to stop by itself: {exc.message}"
    return run_sync(acancel(step.rundir, cluster))


def _subflows(client: SyncPrefectClient, flow_run_id: UUID) -> Iterator[UUID]:
    parents = FlowRunFilterParentFlowRunId(any_=[flow_run_id])
    for run in client.read_flow_runs(flow_run_filter=FlowRunFilter(parent_flow_run_id=parents)):
        yield run.id
        yield from _subflows(client, run.id)
