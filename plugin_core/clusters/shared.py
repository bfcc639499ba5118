"""Start and end a cluster that a workflow's steps share, for workflows that want a task for each of these. Both are
optional: otherwise the first step starts the cluster, and the end of the workflow ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from plugin_core.clusters.base import Cluster
from plugin_core.errors import ClusterQueuedError, SpecError

#: Seconds between two checks of a queued cluster.
QUEUE_POLL_S = 5.0
#: The holder of the lease during set-up; a step would use the URI of its run.
_HOLDER = "set-up"


async def start_shared(cluster: Cluster, tell: Callable[[str], None]) -> str:
    """Create the cluster, unless it exists, and wait until its head is ready, however long it is queued; returns its
    title. Nobody holds a lease on it afterwards: unless a step begins there within `linger_s`, any later run may delete
    it.

    Raises SpecError for a cluster that steps do not share, or one of CLUSTER_ERRORS.
    """
    own, said = _shared(cluster).of_run(_HOLDER), ""
    try:
        while True:
            try:
                async with await own.connect() as client:
                    await client.version()
                return own.title
            except ClusterQueuedError as exc:
                if exc.message != said:
                    said = exc.message
                    tell(said)
                await own.keep()
                await asyncio.sleep(QUEUE_POLL_S)
    finally:
        await own.leave()


async def end_shared(cluster: Cluster) -> None:
    """Delete the cluster, unless a step is still there. Raises the same errors as `start_shared`."""
    await _shared(cluster).end_workflow()


def _shared(cluster: Cluster) -> Cluster:
    if cluster.choices() != (cluster,) or cluster.keep_every_s is None:
        raise SpecError(
            f"cluster: got {cluster.title}, which the steps of a workflow do not share; expected a KubeRayCluster with"
            " share='workflow', within a flow run or DAG run"
        )
    return cluster
