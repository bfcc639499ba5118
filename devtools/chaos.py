"""Helpers for the chaos tests: runs in the background, real processes, a network that breaks."""

import asyncio
import contextlib
import json
import os
import shlex
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal

import psutil

from devtools import notes
from plugin_core import FailureConfig, RayJobSpec, RunConfig, ScalingConfig, TrainSpec, run
from plugin_core.clusters import local_head
from plugin_core.clusters.local_head import Head
from plugin_core.runs.directory import RunDir
from plugin_core.runs.journal import JournalReader
from plugin_core.specs import Limits
from plugin_core.supervisor.supervisor import Event

EVERY = 3
ROOT = Path(__file__).parents[1]
#: What a step does: `devtools.loops.stepping` on Ray Train, or `devtools.jobs.stepping` as a function or a command.
Work = Literal["training", "function", "command"]
WORKS: tuple[Work, ...] = ("training", "function", "command")


def spec_at(storage: Path | str, trail: Path, name: str = "run", **fields: Any) -> TrainSpec:
    """A training with two plain Python workers and short timeouts; `loop=` gives fields of the loop's config."""
    config = {"steps": 12, "every": EVERY, "step_s": 0.3, "trail": str(trail), **fields.pop("loop", {})}
    limits = {"heartbeat_ttl_s": 6.0, **fields.pop("limits", {})}
    run_config = {"failure_config": FailureConfig(max_failures=2), **fields.pop("run_config", {})}
    defaults: dict[str, Any] = {"framework": "python", "train_loop_per_worker": "devtools.loops:stepping"}
    return TrainSpec(
        **{**defaults, "scaling_config": ScalingConfig(num_workers=2), **fields},
        train_loop_config=config,
        limits=Limits(**limits),
        run_config=RunConfig(name=name, storage_path=str(storage), **run_config),
    )


def work_at(work: Work, storage: Path | str, trail: Path, name: str = "run", **fields: Any) -> TrainSpec | RayJobSpec:
    """`spec_at` with one worker, or a Ray job that does the same steps and saves after each."""
    if work == "training":
        return spec_at(storage, trail, name, scaling_config=ScalingConfig(num_workers=1), **fields)
    config = {"steps": 12, "step_s": 0.3, **fields.pop("loop", {})}
    arguments = {"trail": str(trail), "steps": config["steps"], "step_s": config["step_s"]}
    line = shlex.join(["python", "-m", "devtools.jobs", *map(str, arguments.values())])
    does: dict[str, Any] = {"command": f"cd {shlex.quote(str(ROOT))} && {line}"}
    if work == "function":
        does = {"function": "devtools.jobs:stepping", "arguments": arguments}
    return RayJobSpec(
        **does,
        **{key: value for key, value in fields.items() if key != "limits"},
        limits=Limits(**{"heartbeat_ttl_s": 6.0, **fields.get("limits", {})}),
        run_config=RunConfig(name=name, storage_path=str(storage), failure_config=FailureConfig(max_failures=2)),
    )


#: The error that ended a running step, by the file of its trail.
_FAILED: dict[str, BaseException] = {}


class Trail:
    """The steps that began, across all processes of a run."""

    def __init__(self, file: Path):
        self.file = file

    def entries(self, rank: int = 0) -> list[dict[str, Any]]:
        if not self.file.exists():
            return []
        lines = self.file.read_text().splitlines()
        return [entry for entry in map(json.loads, lines) if entry["rank"] == rank]

    def steps(self) -> list[int]:
        return [entry["step"] for entry in self.entries()]

    def hold(self, step: int) -> None:
        """Hold every process at the beginning of `step` or a later one, so that nothing is over before a slow test has
        done what it is to do there."""
        notes.hold(str(self.file), step)

    def release(self) -> None:
        notes.release(str(self.file))

    def wait_for(self, step: int, times: int = 1, timeout_s: float = 600) -> dict[str, Any]:
        """Wait for the `times`-th entry of rank 0 for `step` or a later one, repeated steps included."""
        return self._until(
            lambda: next(iter([e for e in self.entries() if e["step"] >= step][times - 1 :]), None), timeout_s
        )

    def wait_for_process(self, number: int, rank: int = 0) -> None:
        """Wait until the `number`-th process has begun a step as this rank."""
        self._until(lambda: len({entry["pid"] for entry in self.entries(rank)}) == number)

    def _until(self, true: Callable[[], Any], timeout_s: float = 600) -> Any:
        """`wait_until`, but raises as soon as the step has failed."""

        def so_far() -> Any:
            if not (value := true()) and (error := _FAILED.get(str(self.file))) is not None:
                raise AssertionError("the step failed before that") from error
            return value

        return wait_until(so_far, timeout_s)

    def repeated(self) -> int:
        return sum(count - 1 for count in Counter(self.steps()).values())

    def check(self, steps: int, kills: int, every: int = EVERY) -> None:
        """Assert that no step is missing, and that each kill cost at most one checkpoint interval."""
        assert set(self.steps()) == set(range(steps)), "no step was left out"
        assert self.repeated() <= kills * every, f"each kill costs at most one interval: {self.steps()}"


def wait_until(true: Callable[[], Any], timeout_s: float = 600) -> Any:
    """Wait until `true` returns something true, and return that."""
    deadline = time.monotonic() + timeout_s
    while not (value := true()):
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.05)
    return value


class Running:
    """A step that runs in a thread, as in an engine's task process; `events` is what it reported."""

    def __init__(self, spec: TrainSpec | RayJobSpec, cluster: Any):
        self.spec = spec
        self.rundir = RunDir.of(spec)
        self.events: list[Event] = []
        self._done: Future[Any] = Future()
        given = getattr(spec, "train_loop_config", None) or getattr(spec, "arguments", None) or {}
        self._trail = str(given.get("trail"))
        _FAILED.pop(self._trail, None)
        threading.Thread(target=self._run, args=(cluster,), daemon=True).start()

    def _run(self, cluster: Any) -> None:
        try:
            self._done.set_result(run(self.spec, cluster, self.events.append))
        except BaseException as exc:
            _FAILED[self._trail] = exc
            self._done.set_exception(exc)

    def result(self, timeout_s: float = 600) -> Any:
        return self._done.result(timeout_s)

    def error(self, timeout_s: float = 600) -> BaseException | None:
        return self._done.exception(timeout_s)

    def done(self) -> bool:
        return self._done.done()

    def failures(self) -> list[dict[str, Any]]:
        """What ended its worker groups and attempts: the entries of the journal that have a cause."""
        return [entry for entry in JournalReader(self.rundir) if "cause" in entry]

    def reports(self) -> list[dict[str, Any]]:
        """The entries of the journal that are reports."""
        return [entry for entry in JournalReader(self.rundir) if "report" in entry]

    def causes(self) -> list[str]:
        return [str(entry["cause"]) for entry in self.failures()]

    def texts(self, kind: str = "state") -> list[str]:
        return [event.text for event in self.events if event.kind == kind]


# ---- processes


def drivers(uri: str) -> list[psutil.Process]:
    """The live drivers of a run, on every cluster of the machine."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = " ".join(process.info["cmdline"] or [])  # a forked one has a title instead
        if command.split()[1:3] == ["-m", "plugin_core.driver"] and f" {uri} " in f"{command} ":
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
    return found


@contextlib.contextmanager
def counting_drivers(uri: str) -> Iterator[list[int]]:
    """The numbers of live drivers of a run, sampled continuously; more than one at a time breaks the promise."""
    seen: list[int] = []
    stop = threading.Event()

    def sample() -> None:
        while not stop.wait(0.1):
            seen.append(len(drivers(uri)))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()
    assert max(seen, default=0) <= 1, "a second job ran beside a live one"


def nothing_left(uri: str, trail: Trail) -> bool:
    """Whether no driver of the run is alive, and no worker that ever wrote to its trail."""
    began = {(entry["pid"], entry.get("created")) for rank in (0, 1) for entry in trail.entries(rank)}
    return not drivers(uri) and not any(is_worker(pid, created) for pid, created in began)


def is_worker(pid: int, created: float | None = None) -> bool:
    """Whether a process of the trail is alive: identified by when it was `created`, or as a Ray Train worker."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        same = "RayTrainWorker" in " ".join(process.cmdline()) if created is None else process.create_time() == created
        return process.status() != psutil.STATUS_ZOMBIE and same
    return False


def kill(process: psutil.Process | int, number: int = signal.SIGKILL) -> None:
    os.kill(process if isinstance(process, int) else process.pid, number)


def kill_all(processes: Iterable[psutil.Process]) -> None:
    """Kill processes of which some end by themselves once others are dead."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def kill_head() -> Head:
    """Kill the embedded head, its keeper, and everything on it; returns which one it was."""
    head = local_head.current()
    assert head is not None
    kill_all([psutil.Process(head.keeper_pid), *head.processes()])
    return head


def orchestrator_command(spec_file: Path, address: str, token: str, *more: str) -> list[str]:
    return [sys.executable, "-m", "tests.support.orchestrator", str(spec_file), address, token, *more]


# ---- the network


class Proxy:
    """A TCP proxy in front of an HTTP server. `mode`: "forward", "black hole" (bytes go nowhere), or a status to answer.
    `bytes_per_s`: how fast each connection sends to the server; None: as fast as it can. `delay_s`: how long each
    answer is delayed."""

    def __init__(self, host: str, port: int):
        self._target = (host, port)
        self.mode: str | int = "forward"
        self.bytes_per_s: float | None = None
        self.delay_s = 0.0
        self.requests_answered = 0
        self._writers: set[asyncio.StreamWriter] = set()
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True, name="proxy")
        self._thread.start()
        assert ready.wait(30)

    def set(self, mode: str | int) -> None:
        """Change the mode. Connections that are open break, but a black hole keeps them open and loses what they send."""
        self.mode = mode
        if mode != "black hole":
            self._loop.call_soon_threadsafe(lambda: [writer.close() for writer in list(self._writers)])

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join(30)

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._done = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await self._done.wait()
        server.close()
        for writer in list(self._writers):
            writer.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        upstream: asyncio.StreamWriter | None = None
        try:
            if isinstance(self.mode, int):
                await reader.read(65536)
                body = b"played by the test"
                head = f"HTTP/1.1 {self.mode} Played\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                writer.write(head.encode() + body)
                await writer.drain()
                self.requests_answered += 1
                return
            from_upstream, upstream = await asyncio.open_connection(*self._target)
            asked = asyncio.Event()
            await asyncio.gather(self._pump(reader, upstream, asked, True), self._pump(from_upstream, writer, asked))
        except OSError:
            pass
        finally:
            self._writers.discard(writer)
            for each in (writer, upstream):
                if each is not None:
                    each.close()

    async def _pump(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, asked: asyncio.Event, to_server: bool = False
    ) -> None:
        while data := await source.read(65536):
            if self.mode == "black hole":
                continue
            if to_server:
                asked.set()
            elif asked.is_set():
                asked.clear()
                await asyncio.sleep(self.delay_s)
            if to_server and self.bytes_per_s is not None:
                await asyncio.sleep(len(data) / self.bytes_per_s)
            target.write(data)
            await target.drain()
        target.close()
