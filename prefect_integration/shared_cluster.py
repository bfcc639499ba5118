"""One cluster for all steps of a flow run: deleted when the flow run ends."""

from __future__ import annotations

from typing import Any

from prefect.context import FlowRunContext
from prefect.logging.loggers import flow_run_logger

from plugin_core.engine import Cluster, RayTrainWorkflowsError, run_sync

#: Clusters of the flow runs of this process, by the flow run's id.
_shared: dict[str, dict[str, Cluster]] = {}


def share_until_the_end(cluster: Cluster, root: str) -> Cluster:
    """The cluster for the root flow run, if its steps share one. It is deleted at the end of that flow run if that is
    in this process; otherwise by the next run in its namespace, once its leases have expired."""
    cluster = cluster.of_workflow(root) if root else cluster
    context = FlowRunContext.get()
    if cluster.keep_every_s is None or context is None or context.flow_run is None or str(context.flow_run.id) != root:
        return cluster
    _shared.setdefault(root, {})[cluster.of_run(root).identity] = cluster
    flow: Any = context.flow
    for hooks in (flow.on_completion_hooks, flow.on_failure_hooks, flow.on_cancellation_hooks, flow.on_crashed_hooks):
        if _end_clusters not in hooks:
            hooks.append(_end_clusters)
    return cluster


def _end_clusters(flow: Any, flow_run: Any, state: Any) -> None:
    for cluster in _shared.pop(str(flow_run.id), {}).values():
        try:
            run_sync(cluster.end_workflow())
        except RayTrainWorkflowsError as exc:
            flow_run_logger(flow_run, flow).warning("the shared cluster was not deleted: %s", exc.message)
