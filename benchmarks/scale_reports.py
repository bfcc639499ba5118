"""The memory of a million reports, and what a look costs at the end: `python -m benchmarks.scale reports [COUNT]`.

Three processes, as in a real run, each do their part on the same run directory: the controller's callback writes the
journal; the orchestrator's supervisor follows it (the Jobs API is a stub); a driver reads it all at the start of a resumed
attempt, feeds it to a tracker, and reads it again for the result.

A look is measured in CPU time, when the orchestrator is up to date except for five reports.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import threading
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.triggerer import lay_down, process, stub
from plugin_core.clusters.base import RayCluster
from plugin_core.runs.directory import Heartbeat, RunDir
from plugin_core.supervisor.supervisor import Event, Supervisor

FEW, LOOKS, NEW = 1000, 50, 5
TARGET_MB, TARGET_RATIO = 150, 1.2


class Peak:
    """The peak of this process's own memory (USS) since it began."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self.idle = self.most = self._own()
        threading.Thread(target=self._watch, daemon=True).start()

    def _own(self) -> int:
        return int(self._process.memory_full_info().uss)

    def _watch(self) -> None:
        while True:
            self.most = max(self.most, self._own())
            time.sleep(0.2)

    @property
    def megabytes(self) -> float:
        return (max(self.most, self._own()) - self.idle) / 1e6


# ---- the three processes


def controller(pipe: Connection, uri: str) -> None:
    """Makes as many reports as it is told to, then says so."""
    from plugin_core.driver.train.journal_callback import JournalCallback
    from plugin_core.driver.train.snapshot import RunState

    callback = JournalCallback(uri, 1, RunState())
    peak, number = Peak(), 0
    while (count := pipe.recv()) is not None:
        for _ in range(count):
            number += 1
            metrics = {"step": number, "loss": 1 / number, "accuracy": 0.98765432, "lr": 1e-4}
            callback.after_report(SimpleNamespace(checkpoint=None), [metrics])
        if callback._writer is not None:
            callback._writer.flush()
        pipe.send(peak.megabytes)


def orchestrator(pipe: Connection, uri: str, address: str) -> None:
    """Looks as often as it is told to; sends each look's CPU seconds, the number of reports heard so far, and its
    memory."""
    heard = 0

    def hear(event: Event) -> None:
        nonlocal heard
        heard += event.kind == "report"

    async def work() -> None:
        supervisor = Supervisor(RunDir.at(uri), RayCluster(address), since_attempt=0, listener=hear)
        await supervisor.step()
        peak = Peak()
        while await asyncio.to_thread(pipe.recv):
            began = time.process_time()
            await supervisor.step()
            pipe.send((time.process_time() - began, heard, peak.megabytes))

    asyncio.run(work())


def driver(pipe: Connection, uri: str) -> None:
    """Reads the journal as a resumed attempt does: at its start, for a tracker, and for its result."""
    import ray.train  # noqa: F401 - a driver has it in memory

    from plugin_core.driver.train.snapshot import repair_snapshot, state_before
    from plugin_core.driver.train.step import _collect  # noqa: F401
    from plugin_core.runs.history import History
    from plugin_core.specs import CheckpointConfig, TensorBoard
    from plugin_core.tracking.feed import Feed

    class Nowhere:
        config, logged = TensorBoard(), 0

        def begin(self) -> int:
            return 0

        def log(self, entries: list[Any]) -> None:
            self.logged += len(entries)

        def end(self, status: str, message: str) -> None:
            pass

    rundir = RunDir.at(uri)
    peak = Peak()
    history = History.read(rundir)
    repair_snapshot(rundir, CheckpointConfig(), history)
    state_before(rundir, history)
    backend: Any = Nowhere()
    feed = Feed(rundir, backend)
    feed.start()
    feed.end("finished", "")
    feed.wait(60)
    history = History.read(rundir, "loss")
    pipe.send((peak.megabytes, history.reports, backend.logged))


# ---- the table


def main(count: int = 1_000_000) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, ExitStack() as stack:
        address = stack.enter_context(process(stub)).recv()
        (uri,) = lay_down(Path(folder), address, 1)
        rundir = RunDir.at(uri)
        rundir.beat(1, Heartbeat(1, "training"))
        writer = stack.enter_context(process(controller, uri))
        watcher = stack.enter_context(process(orchestrator, uri, address))

        def report(number: int) -> float:
            writer.send(number)
            return float(writer.recv())

        def look() -> tuple[float, int, float]:
            watcher.send(True)
            cost, heard, megabytes = watcher.recv()
            return cost, heard, megabytes

        def look_cost() -> float:
            costs = []
            for _ in range(LOOKS):
                report(NEW)
                costs.append(look()[0])
            return statistics.median(costs)

        report(FEW - LOOKS * NEW)
        look()
        early = look_cost()
        written = FEW
        while written < count - LOOKS * NEW:
            portion = min(20_000, count - LOOKS * NEW - written)
            report(portion)
            look()
            written += portion
        late = look_cost()
        controlled, (_, heard, followed) = report(0), look()
        with process(driver, uri) as reading:
            driven, read, logged = reading.recv()
        assert heard == read == logged == count, (heard, read, logged, count)
    table = Table("", "today", "target", title=f"{count:,} reports")
    for name, megabytes in (("controller", controlled), ("orchestrator", followed), ("driver", driven)):
        table.add_row(f"memory of the {name} above idle", f"{megabytes:.0f} MB", f"< {TARGET_MB} MB")
    ratio = f"{late * 1000:.1f} ms ÷ {early * 1000:.1f} ms = {late / early:.2f}"
    table.add_row(f"a look at the end ÷ at the {FEW}th report", ratio, f"≤ {TARGET_RATIO}")
    Console().print(table)
