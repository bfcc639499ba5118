"""The end of a run, as an orchestrator sees it: its job's process ends, and all that it said is told.

The result is there before the driver's process is gone. What that process says last, and what a cluster that was away has
kept, is read here; a process that does not end is stopped. All of it is bounded: the result is never waited for longer.
"""

from __future__ import annotations

import asyncio
import time

from plugin_core.clusters.base import Cluster
from plugin_core.errors import CLUSTER_ERRORS
from plugin_core.runs.directory import Receipt, RunDir
from plugin_core.storage.threads import Threads
from plugin_core.supervisor.follower import Event, Follower
from plugin_core.supervisor.observer import Observer

#: Seconds after which a job that has its result, and does not end, is stopped. Its driver ends itself before that
#: (`driver.EXIT_S`), unless it is stopped or hangs in the kernel.
STOP_S = 40.0
#: Seconds after which the result is handed over in any case; a cluster that is away is waited for so long.
LEAVE_S = 60.0
POLL_S = 0.5


async def see_off(
    rundir: RunDir, receipt: Receipt | None, cluster: Cluster, observer: Observer, follower: Follower
) -> None:
    """The run is over: tell journal and log to their end, and wait until its process is gone. Who asks for the result of
    a run that was over before waits for nothing. Where the end of the log does not come in `LEAVE_S`, a line says so."""
    threads = Threads.of(rundir.uri)
    if follower.follows:
        await follower.show_rest()
    if receipt is None and (follower.follows or observer.attempt):
        receipt = await threads(rundir.receipt, await threads(rundir.latest))
    if receipt is not None and (missing := await _watch_out(receipt, cluster, observer, follower)):
        follower.tell(Event("state", f"the end of the log of {receipt.submission_id} may be missing: {missing}"))


async def _watch_out(receipt: Receipt, cluster: Cluster, observer: Observer, follower: Follower) -> str:
    """Why the end of the job's log cannot be told; "" where it was, and the job is over."""
    if receipt.cluster and receipt.cluster != cluster.identity:
        return f"only {receipt.cluster} has it"
    began = time.monotonic()
    stopped = False
    while True:
        try:
            if observer.client is None and not await cluster.lives():
                return "its cluster is gone"  # to ask would start another one
            client = await observer.connect()
            job = await client.job(receipt.submission_id)
            if job is None:
                return "its cluster knows the job no more"
            await follower.show_log(client, job, final=job.terminal)
            if job.terminal:
                return ""
            waited_s = time.monotonic() - began
            missing = f"its process still ran {waited_s:.0f} s after the end of the run"
            if waited_s > STOP_S and not stopped:
                stopped = True
                follower.tell(Event("state", f"stop: {receipt.submission_id} is done, but its process does not end"))
                await client.stop(receipt.submission_id)
        except CLUSTER_ERRORS as exc:
            missing = exc.message
            await observer.close()
        if time.monotonic() - began > LEAVE_S:
            return missing
        await asyncio.sleep(POLL_S)
