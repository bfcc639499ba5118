"""The requests to storage: `make bench-storage`, or `python -m benchmarks.storage [REPORTS]`.

Counts the requests to an S3 server on this machine for each recurring operation of a run, and what a day of them costs
at list prices. Then follows a journal of REPORTS reports (default: a million) to its end, to compare the cost of the
thousandth look with the last one's; and one of 1,000 ranks that report each second for an hour. Last, an upload whose
process is killed. Only the looks are timed, each as the median of many.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.counting_s3 import PRICES, Requests, counting_s3, kinds, price
from plugin_core.clusters.fake import FakeCluster
from plugin_core.driver.fenced_filesystem import fenced_filesystem
from plugin_core.driver.watchdog import Watch
from plugin_core.runs.directory import Heartbeat, RunDir
from plugin_core.runs.fence import Fence
from plugin_core.runs.journal import SEGMENT_BYTES, JournalReader, JournalWriter, segment_name
from plugin_core.runs.timings import BEAT_S, FENCE_CACHE_S, FENCE_EVERY_S, FLUSH_S
from plugin_core.specs import Limits, TrainSpec
from plugin_core.storage.location import Location
from plugin_core.supervisor.observer import Observer
from plugin_core.supervisor.supervisor import Supervisor, prepare
from plugin_core.supervisor.timings import POLL_MAX_S

DAY_S = 24 * 3600
#: The number of looks that are timed together.
LOOKS = 200


@dataclass
class Row:
    """The requests now, how many there were before (at 735c424, pyarrow 25), and how many there may be; `every_s`: how
    often it happens in a run that reports each second."""

    what: str
    asked: list[tuple[str, str]]
    before: str
    target: str
    every_s: float | None = None


def spec_at(uri: str, **limits: float) -> TrainSpec:
    run_config: Any = {"name": "run", "storage_path": uri}
    loop = "benchmarks.storage:train_loop"
    return TrainSpec(framework="python", train_loop_per_worker=loop, run_config=run_config, limits=Limits(**limits))


def train_loop(config: dict[str, Any]) -> None:
    """Never run: the cluster is a fake."""


def operations(uri: str, requests: Requests) -> Iterator[Row]:
    def asked(call: Callable[[], Any]) -> list[tuple[str, str]]:
        requests.take()
        call()
        return requests.take()

    place = Location.of(uri).child("small.json")
    yield Row("read: absent", asked(place.read), "1", "1")
    yield Row("write a small file", asked(lambda: place.write(b"{}")), "3", "1")
    yield Row("read: present", asked(place.read), "2", "1")
    with FakeCluster(plays=["hang"]) as cluster:
        rundir = asyncio.run(begun(uri, cluster))
        yield Row("look at the fence", asked(Fence(rundir.uri, 1).check), "2", "1", FENCE_EVERY_S)
        writer = JournalWriter(rundir, 1)
        writer.append({"report": 0, "metrics": {"loss": 0.5}})
        writer.flush()
        time.sleep(FENCE_CACHE_S)
        writer.append({"report": 1, "metrics": {"loss": 0.5}})
        yield Row("journal flush", asked(writer.flush), "5", "2", FLUSH_S)
        yield Row("driver's heartbeat", beat(rundir, requests, None), "6", "2", BEAT_S)
        yield Row("the same, orphan_timeout_s", beat(rundir, requests, 3600.0), "8", "2")
        yield Row("steady look, nothing new", asyncio.run(steady_look(rundir, cluster, requests, None)), "11", "3")
        reports = asyncio.run(steady_look(rundir, cluster, requests, writer))
        yield Row("steady look, four reports more", reports, "11", "3", POLL_MAX_S)
        writer.close()
    steps = a_checkpoint(RunDir.at(Location.of(uri).child("checkpoints").uri))
    next(steps)
    yield Row("checkpoint: one file, one rank", asked(lambda: next(steps)), "22", "8")
    yield Row("an old checkpoint deleted", asked(lambda: next(steps)), "9", "")


async def begun(uri: str, cluster: FakeCluster) -> RunDir:
    rundir = await prepare(spec_at(uri), cluster)
    await Supervisor(rundir, cluster).submit()
    return rundir


def beat(rundir: RunDir, requests: Requests, orphan_timeout_s: float | None) -> list[tuple[str, str]]:
    """One heartbeat of a driver: the look at the run directory, and the write."""
    limits = Limits(orphan_timeout_s=orphan_timeout_s)
    watch = Watch(rundir, 1, limits, stop=print)
    requests.take()
    watch.look()
    rundir.beat(1, Heartbeat(2, "training"))
    return requests.take()


async def steady_look(
    rundir: RunDir, cluster: FakeCluster, requests: Requests, writer: JournalWriter | None
) -> list[tuple[str, str]]:
    supervisor = Supervisor(rundir, cluster, since_attempt=0, listener=lambda event: None)
    try:
        for _ in range(2):
            await supervisor.step()
        if writer is not None:
            for number in range(4):
                writer.append({"report": number, "metrics": {"loss": 0.5}, "checkpoint": None})
            writer.flush()
        requests.take()
        await supervisor.step()
        return requests.take()
    finally:
        await supervisor.close()


def a_checkpoint(rundir: RunDir) -> Iterator[None]:
    """Prepare; make a checkpoint as Ray Train's worker and controller do (ray 2.60), with its entry in the journal; then
    delete it as the controller does."""
    from ray.train import Checkpoint
    from ray.train.v2._internal.execution.storage import StorageContext, delete_fs_path

    from plugin_core.storage.checkpoint_manifest import FOLDER

    fs = fenced_filesystem(rundir.uri, 1)
    parent, _, name = rundir.location.path.rpartition("/")
    storage, writer = StorageContext(parent, name, fs), JournalWriter(rundir, 1)
    writer.append({"report": 0, "metrics": {}, "checkpoint": None})
    writer.flush()
    time.sleep(FENCE_CACHE_S)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "model.pt").write_bytes(b"x" * 100_000)
        yield
        kept = storage.persist_current_checkpoint(Checkpoint.from_directory(folder), "checkpoint_a001_000001")
        fs.create_dir(f"{kept.path}/{FOLDER}")
        with fs.open_output_stream(f"{kept.path}/{FOLDER}/00000.json") as stream:
            stream.write(b'{"files": {}}')
        time.sleep(FENCE_CACHE_S)  # the controller is another process, which checked the fence earlier
        writer.append({"report": 1, "metrics": {}, "checkpoint": "checkpoint_a001_000001"})
        with fs.open_output_stream(storage.checkpoint_manager_snapshot_path) as stream:
            stream.write(b"{}")
    yield
    time.sleep(FENCE_CACHE_S)
    delete_fs_path(fs, kept.path)
    writer.close()
    yield


def print_operations(uri: str, requests: Requests) -> None:
    table = Table("operation", "before", "now", "target", "requests", "$ a day", title="requests of S3")
    day = 0.0
    for row in operations(uri, requests):
        each = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds(row.asked).items()))
        cost = price(row.asked) * DAY_S / row.every_s if row.every_s else None
        day += cost or 0.0
        table.add_row(row.what, row.before, str(len(row.asked)), row.target, each, f"{cost:.3f}" if cost else "")
    table.add_section()
    table.add_row("a run that reports each second", "", "", "", "", f"{day:.2f}")
    Console(width=120).print(table)


# ---- journals of any length


class Follower:
    """An orchestrator's looks at a run: the attempts, the result, the journal; counted and timed."""

    def __init__(self, rundir: RunDir, cluster: FakeCluster, requests: Requests):
        self._observer = Observer(rundir, cluster, 0)
        self._reader = JournalReader(rundir, attempt=1)
        self._requests = requests
        self.entries = 0

    async def look(self) -> tuple[float, list[tuple[str, str]]]:
        self._requests.take()
        began = time.process_time()
        await self._observer.look()
        self.entries += sum(1 for _ in self._reader)
        return time.process_time() - began, self._requests.take()

    async def close(self) -> None:
        await self._observer.close()


def entry(number: int, ranks: int) -> bytes:
    metrics = {"loss": 0.12345678, "accuracy": 0.87654321, "step": number}
    line: dict[str, Any] = {"attempt": 1, "time": 1e9 + number, "report": number, "index": number}
    line |= {"metrics": metrics, "checkpoint": None}
    if ranks:
        line["ranks"] = [metrics] * ranks
    return json.dumps(line).encode() + b"\n"


async def followed(uri: str, requests: Requests, steps: list[int], ranks: int, early: slice) -> None:
    """Follow a journal that grows by `steps` reports before each look. Prints the looks of `early`, and the last
    ones."""
    with FakeCluster(plays=["hang"]) as cluster:
        rundir = await begun(uri, cluster)
        follower = Follower(rundir, cluster, requests)
        journal, number, segment, sequence = rundir.step.child("journal"), 0, b"", 1
        looks = []
        for step in steps:
            for _ in range(step):
                segment += entry(number, ranks)
                number += 1
                if len(segment) >= SEGMENT_BYTES:
                    journal.child(segment_name(1, sequence)).write(segment)
                    segment, sequence = b"", sequence + 1
            if segment:
                journal.child(segment_name(1, sequence)).write(segment)
            looks.append(await follower.look())
        await follower.close()
        assert follower.entries == number, "each is read once"
    before, after = (statistics.median(seconds for seconds, _ in some) for some in (looks[early], looks[-LOOKS:]))
    each = [statistics.mean(len(asked) for _, asked in some) for some in (looks[early], looks[-LOOKS:])]
    lists = max(kinds(asked)["LIST"] for _, asked in looks[-LOOKS:])
    print(
        f"{number:,} reports of {max(1, ranks):,} rank(s) in {sequence:,} segments: the last {LOOKS} looks took"
        f" {after / before:.2f} of the CPU of the first ones (target 1.20), {each[1]:.1f} requests after {each[0]:.1f}, at"
        f" most {lists} LIST(s) (target 2)"
    )


def killed_upload(uri: str) -> None:
    place = Location.of(uri).child("killed")
    program = (
        "import os, signal, time; from plugin_core.storage.location import Location\n"
        f"place = Location.of({place.uri!r}).child('big')\n"
        "stream = place.fs.open_output_stream(place.path)\n"
        "for _ in range(4): stream.write(b'x' * (10 << 20))\n"
        "time.sleep(1); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", program], check=False)
    left = place.abort_uploads()
    print(f"uploads in parts after a kill: {left}; after the next attempt's start: {place.abort_uploads()} (target: 0)")


def main(reports: int) -> None:
    print(
        f"list prices, S3 Standard, us-east-1, in $ per 1,000: { ({kind: cost * 1000 for kind, cost in PRICES.items()}) }"
    )
    with counting_s3() as (uri, requests):
        print_operations(uri, requests)
        # looks with four reports each, after the thousandth and at the end, and some on the way there
        near = [4] * LOOKS
        long = [*near, 1000 - 4 * LOOKS, *near, *[1000] * ((reports - 12 * LOOKS) // 1000), *near]
        asyncio.run(followed(_below(uri, "long"), requests, long, 0, slice(LOOKS + 1, 2 * LOOKS + 1)))
        wide = [int(POLL_MAX_S)] * (3600 // int(POLL_MAX_S))
        asyncio.run(followed(_below(uri, "wide"), requests, wide, 1000, slice(LOOKS, 2 * LOOKS)))
        killed_upload(uri)


def _below(uri: str, name: str) -> str:
    return Location.of(uri).child(name).uri


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 1_000_000)
