"""Finish following a run: wait for its process to exit and show the rest of its log.

The result exists before the driver's process exits. This reads the last lines of that process, and whatever an
unreachable cluster kept, and stops a process that does not exit. The time is bounded, so the result is never held up.
"""

from __future__ import annotations

import asyncio
import time

from plugin_core.errors import CLUSTER_ERRORS
from plugin_core.runs.directory import Receipt, RunDir
from plugin_core.storage.threads import Threads
from plugin_core.supervisor import timings
from plugin_core.supervisor.events import Event
from plugin_core.supervisor.follower import Follower
from plugin_core.supervisor.observer import Observer
from plugin_core.supervisor.where import Where

POLL_S = 0.5


async def see_off(rundir: RunDir, receipt: Receipt | None, observer: Observer, follower: Follower) -> None:
    """Show the rest of the journal and log of a run that is over, and wait until its process has exited. Returns at once
    if the run was already over before this call. A log whose end does not arrive from the cluster in `LEAVE_S` is shown as
    the run directory keeps it; if that has none, a state line says so."""
    threads = Threads.of(rundir.uri)
    if follower.follows:
        await follower.show_rest()
    if receipt is None and (follower.follows or observer.attempt):
        receipt = await threads(rundir.receipt, await threads(rundir.latest))
    if receipt is None or not (missing := await _watch_out(receipt, observer.where, follower)):
        return
    if not await follower.show_kept_log(receipt, missing):
        follower.tell(Event("state", f"the end of the log of {receipt.submission_id} may be missing: {missing}"))


async def _watch_out(receipt: Receipt, where: Where, follower: Follower) -> str:
    """Return why the end of the job's log cannot be shown; "" if it was shown and the job has ended."""
    if receipt.cluster and receipt.cluster != where.cluster.identity:
        return f"only {receipt.cluster} has it"
    began = time.monotonic()
    stopped = False
    while True:
        try:
            if where.client is None and not await where.cluster.lives():
                return "its cluster is gone"  # connecting would start another one
            client = await where.reconnect()
            job = await client.job(receipt.submission_id)
            if job is None:
                return "its cluster no longer knows the job"
            await follower.show_log(client, job, final=job.terminal)
            if job.terminal:
                return ""
            waited_s = time.monotonic() - began
            missing = f"its process was still running {waited_s:.0f} s after the run ended"
            if waited_s > timings.STOP_S and not stopped:
                stopped = True
                follower.tell(Event("state", f"stopping: {receipt.submission_id} is done, but its process does not exit"))
                await client.stop(receipt.submission_id)
        except CLUSTER_ERRORS as exc:
            missing = exc.message
            await where.close()
        if time.monotonic() - began > timings.LEAVE_S:
            return missing
        await asyncio.sleep(POLL_S)
