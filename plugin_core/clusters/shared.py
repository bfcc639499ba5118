"""Starts and ends a cluster that the steps of a workflow share, where a workflow wants a task for each. No step needs them:
the first one starts the cluster, and the end of the workflow ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from plugin_core.clusters.base import Cluster
from plugin_core.errors import ClusterQueuedError, SpecError

#: Seconds between two looks at a cluster in a queue.
QUEUE_POLL_S = 5.0
#: Who holds the lease meanwhile, where a step has the URI of its run.
_HOLDER = "set-up"


async def start_shared(cluster: Cluster, tell: Callable[[str], None]) -> str:
    """Create the cluster, unless it exists, and wait until its head is ready, in a queue however long; returns its title.
    Nobody holds it then: unless a step begins there within its `linger_s`, any later run may delete it.

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
    """Delete the cluster, unless a step is still there. Raises as `start_shared`."""
    await _shared(cluster).end_workflow()


def _shared(cluster: Cluster) -> Cluster:
    if cluster.choices() != (cluster,) or cluster.keep_every_s is None:
        raise SpecError(
            f"cluster: got {cluster.title}, which the steps of a workflow do not share; expected a KubeRayCluster with"
            " share='workflow', within a flow run or DAG run"
        )
    return cluster
