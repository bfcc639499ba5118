"""How many deferred runs one triggerer follows: `python -m benchmarks.triggerer [N ...]`.

One event loop follows N runs at once, as one Airflow triggerer would: the code inside `RayStepTrigger`, run directories
on local disk that a writer extends, and a stub of the Jobs API over HTTP. Writer and stub are processes of their own,
so that their CPU does not count. For comparison, the naive trigger: Ray's synchronous client, called inside the event
loop.

Poll lag is the time from when a journal entry is written until the listener is told, by this machine's clock; a naive
trigger reads no journal, so each answer is assumed to tell it what has happened by then. A lag of up to the pause
between two looks is by design; anything above that, and the CPU, is the cost of following many runs.
"""

import asyncio
import contextlib
import heapq
import itertools
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
from aiohttp import web

from plugin_core.clusters.base import RayCluster
from plugin_core.runs.directory import RunDir
from plugin_core.specs import RunConfig, TrainSpec
from plugin_core.specs.results import StepResult
from plugin_core.supervisor.supervisor import Event, Supervisor

RUNS, NAIVE_RUNS = (100, 1000, 2000), 100
NAIVE_POLL_S = 5.0
#: Seconds between two entries of a journal: not a multiple of a poll, or a run would show the same lag each time.
ENTRY_S, BEAT_S = 7.0, 10.0
#: What a run has when it is first looked at: a half-full journal segment, a log of several hundred lines.
JOURNAL_BYTES, LOG_BYTES = 32 * 1024, 64 * 1024
#: Seconds that the stub takes to answer.
API_S = 0.02
#: Start-up is over once every run has been looked at often enough for its pauses to have reached their maximum.
STEADY_LOOKS, STEADY_MAX_S = 14, 120
MEASURE_S, TICK_S = 30.0, 0.1
SPAWN = get_context("spawn")


@dataclass
class Row:
    """What one triggerer measured, in seconds; `looks` is how long each took."""

    lags: list[float] = field(default_factory=list)
    loop_lags: list[float] = field(default_factory=list)
    looks: list[float] = field(default_factory=list)
    wall_s: float = 0.0
    cpu_s: float = 0.0
    rss: int = 0

    def cells(self) -> list[str]:
        of = ((self.lags, 0.5), (self.lags, 0.95), (self.loop_lags, 0.95), (self.looks, 0.95))
        per_second = f"{len(self.looks) / self.wall_s:.0f}", f"{self.cpu_s / self.wall_s:.2f}"
        return [*(f"{quantile(values, share):.3f}" for values, share in of), *per_second, f"{self.rss / 2**20:.0f}"]


COLUMNS = ("trigger", "runs", "poll lag p50", "p95", "loop lag p95", "look p95", "looks/s", "cores", "RSS MB")


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))] if values else float("nan")


# ---- the triggerer, in a process of its own


class Timed(Supervisor):
    """Notes when its looks begin and end, and what it reports."""

    def __init__(self, uri: str, address: str, row: Row):
        super().__init__(RunDir.at(uri), RayCluster(address), since_attempt=0, listener=self.hear)
        self.row = row
        self.looks = 0

    async def step(self) -> StepResult | None:
        began = time.monotonic()
        result = await super().step()
        self.row.looks.append(time.monotonic() - began)
        self.looks += 1
        return result

    def hear(self, event: Event) -> None:
        if "written" in event.data:
            self.row.lags.append(time.monotonic() - event.data["written"])


async def follow(row: Row, address: str, uris: list[str]) -> None:
    supervisors = [Timed(uri, address, row) for uri in uris]
    tasks = [asyncio.create_task(supervisor.run()) for supervisor in supervisors]
    await measure(row, tasks, lambda: all(supervisor.looks >= STEADY_LOOKS for supervisor in supervisors))


async def follow_naively(row: Row, address: str, uris: list[str]) -> None:
    """Polls like the archived provider of Anyscale and Astronomer."""
    from ray.job_submission import JobSubmissionClient

    async def poll(number: int) -> None:
        client, news = JobSubmissionClient(address), time.monotonic() + first_entry(number)
        while True:
            began = time.monotonic()
            client.get_job_status(f"naive-{number}")
            row.looks.append(time.monotonic() - began)
            while news < time.monotonic():
                row.lags.append(time.monotonic() - news)
                news += ENTRY_S
            await asyncio.sleep(NAIVE_POLL_S)

    steady = time.monotonic() + 3 * NAIVE_POLL_S
    tasks = [asyncio.create_task(poll(number)) for number in range(len(uris))]
    await measure(row, tasks, lambda: time.monotonic() > steady)


async def measure(row: Row, tasks: list[asyncio.Task[Any]], steady: Callable[[], bool]) -> None:
    for _ in range(STEADY_MAX_S):
        await asyncio.sleep(1.0)
        if steady():
            break
    else:
        print(f"start-up was not over after {STEADY_MAX_S} s; what follows is not a steady state", file=sys.stderr)
    for values in (row.lags, row.loop_lags, row.looks):
        values.clear()
    began, cpu = time.monotonic(), time.process_time()
    while (now := time.monotonic()) < began + MEASURE_S:
        await asyncio.sleep(TICK_S)
        row.loop_lags.append(time.monotonic() - now - TICK_S)
    row.wall_s, row.cpu_s = time.monotonic() - began, time.process_time() - cpu
    row.rss = psutil.Process().memory_info().rss
    for task in tasks:
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if not isinstance(ended, asyncio.CancelledError):
            print(f"a run was not followed to the end: {ended!r}", file=sys.stderr)


Kind = Callable[[Row, str, list[str]], Coroutine[Any, Any, None]]


def triggerer(pipe: Connection, kind: Kind, address: str, uris: list[str]) -> None:
    row = Row()
    asyncio.run(kind(row, address, uris))
    pipe.send(row)


# ---- what it follows: run directories as an operator leaves them, their writer, and the stub


def lay_down(folder: Path, address: str, count: int) -> list[str]:
    run_config = RunConfig(name="model", storage_path=str(folder))
    spec = TrainSpec(train_loop_per_worker="json:loads", framework="python", run_config=run_config)
    RunDir.of(spec).write_spec(spec)
    rundirs = [RunDir.at(str(folder / str(number))) for number in range(count)]
    for rundir in rundirs:
        rundir.claim(1, address, "session_stub", RayCluster(address).identity)
        os.link(folder / "model/.step/spec.json", Path(rundir.step.path, "spec.json"))
    return [rundir.uri for rundir in rundirs]


def first_entry(number: int) -> float:
    """Spreads the runs' entries over the interval."""
    return number * 0.618 % 1 * ENTRY_S


def write(pipe: Connection, uris: list[str]) -> None:
    """Extends journals and updates heartbeats by atomic replacement, as their writers do, but without their fsync."""
    steps = [Path(RunDir.at(uri).step.path) for uri in uris]
    segments = [entry(0) * (JOURNAL_BYTES // len(entry(0)))] * len(uris)
    began = time.monotonic()
    due = [(began + first_entry(number), number, beat) for number in range(len(uris)) for beat in (True, False)]
    for number, step in enumerate(steps):
        replace(step / "journal/001-0001.jsonl", segments[number])
        replace(step / "attempts/001.beat.json", b'{"counter": 0, "phase": "training"}')
    heapq.heapify(due)
    for turn in itertools.count(1):
        at, number, beat = due[0]
        time.sleep(max(0.0, at - time.monotonic()))
        if beat:
            replace(steps[number] / "attempts/001.beat.json", b'{"counter": %d, "phase": "training"}' % turn)
        else:
            segments[number] += entry(turn)
            replace(steps[number] / "journal/001-0001.jsonl", segments[number])
        heapq.heapreplace(due, (at + (BEAT_S if beat else ENTRY_S), number, beat))


def entry(number: int) -> bytes:
    metrics = {"loss": 0.12345678, "accuracy": 0.98765432, "epoch": 12, "step": number}
    line = {"attempt": 1, "time": time.time(), "report": number, "metrics": metrics, "checkpoint": None}
    return json.dumps({**line, "written": time.monotonic()}).encode() + b"\n"


def replace(file: Path, data: bytes) -> None:
    file.parent.mkdir(exist_ok=True)
    file.with_suffix(".tmp").write_bytes(data)
    file.with_suffix(".tmp").rename(file)


def stub(pipe: Connection) -> None:
    """The Jobs API of a head on which every job is running."""
    line = "(RayTrainWorker pid=1234, ip=10.0.0.1) epoch 12 step 3456 loss 0.1234 accuracy 0.9876\n"
    job = {
        "type": "SUBMISSION",
        "status": "RUNNING",
        "entrypoint": "python -m plugin_core.driver",
        "message": "It runs.",
        "driver_node_id": "stub",
    }
    version = {"version": "4", "ray_version": "2.60.0", "session_name": "session_stub"}
    answers = {"version": version, "stop": {"stopped": True}}
    bodies = {name: json.dumps(answer).encode() for name, answer in answers.items()}
    bodies["file"] = (line * (LOG_BYTES // len(line))).encode()  # /api/v0/logs/file

    async def answer(request: web.Request) -> web.Response:
        await asyncio.sleep(API_S)
        name = request.path.rpartition("/")[2]
        body = bodies.get(name) or json.dumps({**job, "submission_id": name}).encode()
        return web.Response(body=body, content_type="application/json")

    async def serve() -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
        pipe.send(f"http://127.0.0.1:{runner.addresses[0][1]}")
        await asyncio.Event().wait()

    asyncio.run(serve())


# ---- the table


@contextlib.contextmanager
def process(target: Callable[..., None], *args: Any) -> Iterator[Connection]:
    """A process that ends with the block; yields the pipe that receives what it sends."""
    ours, theirs = SPAWN.Pipe()
    child = SPAWN.Process(target=_run, args=(target, theirs, *args), daemon=True)
    child.start()
    theirs.close()
    try:
        yield ours
    finally:
        child.terminate()
        child.join()


def _run(target: Callable[..., None], *args: Any) -> None:
    # Ctrl-C goes to the whole group, and the parent then ends this process
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    target(*args)


def row_of(kind: Kind, count: int) -> Row:
    with tempfile.TemporaryDirectory(prefix="triggerer-") as place, process(stub) as api:
        address = api.recv()
        uris = lay_down(Path(place), address, count)
        with process(write, uris), process(triggerer, kind, address, uris) as measured:
            row: Row = measured.recv()
            return row


def main(*counts: int) -> None:
    from rich.console import Console
    from rich.table import Table

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    table = Table(*COLUMNS, title=f"{MEASURE_S:g} s of steady state, in seconds; the Jobs API answers in {API_S:g} s")
    naive = row_of(follow_naively, NAIVE_RUNS)
    table.add_row("naive", str(NAIVE_RUNS), *naive.cells())
    for count in counts or RUNS:
        table.add_row("ours", str(count), *row_of(follow, count).cells())
    Console(width=100).print(table)
    held = sum(naive.looks) / naive.wall_s
    print(f"The naive trigger holds the event loop {held:.0%} of the time; with {NAIVE_RUNS / held:.0f} runs, all of it.")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
