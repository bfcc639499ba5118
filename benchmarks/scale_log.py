"""What a job log of 1 GB costs its reader, from a real Ray head: `python -m benchmarks.scale log [MB]`.

The job's log already exists when the reader arrives, as for a task that moved to another triggerer. A ticker in the
reader's event loop measures how long the loop is blocked: in CPU time of the loop's thread, and in wall time, which on
a shared machine includes the turns of others (an idle loop shows how long those are).
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from devtools.servers import embedded_head
from plugin_core import LocalCluster
from plugin_core.clusters.jobs_api import JobInfo, JobsClient
from plugin_core.supervisor.job_log import JobLog

TICK_S, IDLE_S = 0.002, 15.0
#: Prints MEGABYTES of lines of 100 characters, all different, then waits.
JOB = "import sys,time\nfor n in range(int(sys.argv[1]) * 10_000): print(f'step {n:10} ' + 'x' * 83)\nsys.stdout.flush()\n"


class Ticker:
    """Notes the longest time for which an event loop was blocked."""

    def __init__(self) -> None:
        self.longest_s = self.longest_cpu_s = 0.0
        self.rss = 0

    async def run(self) -> None:
        process = psutil.Process()
        while True:
            last, cpu = time.monotonic(), time.thread_time()
            await asyncio.sleep(TICK_S)
            self.longest_s = max(self.longest_s, time.monotonic() - last - TICK_S)
            self.longest_cpu_s = max(self.longest_cpu_s, time.thread_time() - cpu)
            self.rss = max(self.rss, process.memory_info().rss)


async def finished(client: JobsClient, submission_id: str) -> JobInfo:
    while (job := await client.job(submission_id)) is None or not job.terminal:  # noqa: ASYNC110 - Ray has no event of it
        await asyncio.sleep(0.5)
    return job


async def measure(megabytes: int, script: Path) -> Table:
    table = Table("", "today", "target", title=f"A job log of {megabytes} MB")
    async with await LocalCluster().connect() as client:
        await client.submit("big", f"{sys.executable} {script} {megabytes}", {}, {})
        job = await finished(client, "big")
        ticker, log = Ticker(), JobLog("big")
        idle = psutil.Process().memory_info().rss
        ticking = asyncio.create_task(ticker.run())
        began, shown, looks = time.monotonic(), 0, 0
        while log.position < megabytes * 1_000_000:
            looks += 1
            async for piece in log.read(client, job, final=False):
                shown += len(piece)
                await asyncio.sleep(0)
        took = time.monotonic() - began
        steady = time.monotonic()
        log._due = 0.0
        assert [piece async for piece in log.read(client, job, final=False)] == []
        steady = time.monotonic() - steady
        ticking.cancel()
        idle_ticker = Ticker()
        ticking = asyncio.create_task(idle_ticker.run())
        await asyncio.sleep(min(took, IDLE_S))
        ticking.cancel()
    table.add_row("event loop held, longest, by CPU", f"{ticker.longest_cpu_s * 1000:.1f} ms", "< 20 ms")
    clocks = f"{ticker.longest_s * 1000:.0f} ms, of an idle loop {idle_ticker.longest_s * 1000:.0f} ms"
    table.add_row("the same by the clock", clocks, "< 20 ms on a quiet machine")
    table.add_row("memory above idle", f"{(ticker.rss - idle) / 1e6:.0f} MB", "bounded: < 50 MB")
    table.add_row("shown", f"{shown / 1e6:.1f} MB and what is left out", "2 MB a look")
    table.add_row("read through", f"{took:.1f} s in {looks} looks of 5 s", "")
    table.add_row("a look after that", f"{steady * 1000:.0f} ms", "")
    return table


def main(megabytes: int = 1000) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name, embedded_head(Path(name, "ray")):
        script = Path(name, "job.py")
        script.write_text(JOB)
        Console().print(asyncio.run(measure(megabytes, script)))
