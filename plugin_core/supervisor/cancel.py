"""Cancels a run, from any process: ends its job and everything that the job started."""

from __future__ import annotations

from plugin_core.clusters.base import Cluster
from plugin_core.runs.directory import RunDir
from plugin_core.storage.threads import Threads, run_sync
from plugin_core.supervisor.supervisor import Supervisor


def cancel(rundir: RunDir, cluster: Cluster) -> str:
    """`acancel` up to the newest attempt, for an engine's task that gives up; later attempts are not its own."""
    return run_sync(acancel(rundir, cluster, rundir.latest()))


async def acancel(rundir: RunDir, cluster: Cluster, attempt: int | None = None) -> str:
    """Cancel a run: record the cancel for its driver, stop its job, wait until its processes are gone. Safe to repeat.

    `attempt`: the newest attempt the caller knows of; later ones belong to other callers and continue. None: all attempts.
    Returns "cancelled", or "finished" if the run already had its result.
    """
    if await Threads.of(rundir.uri)(rundir.result) is not None:
        return "finished"
    return await Supervisor(rundir, cluster, since_attempt=0).cancel(attempt)
