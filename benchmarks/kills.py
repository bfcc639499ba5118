"""Half an hour of kills: `make bench-kills`, or `python -m benchmarks.kills [SECONDS [SEED]]`.

The same training three ways at the same time: a step on the embedded head, bare Ray Train (`max_failures=-1`) on a head
of its own, and `torchrun --max-restarts`. In each, something is killed every 60 to 120 s, on one seeded schedule: a
worker, the process that drives the training (the driver, the program with `fit()`, torchrun's agent), or everything (the
head with everything on it). The three get their kills 20 s apart, so that they do not restart at the same moment. What
does not come back by itself is restarted "by hand" within half a second of its end, faster than any person would.

Effective time is the time of steps that advanced the training ÷ wall time. A step that is repeated counts once.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import ClassVar, Protocol

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.kills_ways import EVERY, STEP_S, WORKERS
from devtools.chaos import Running, Trail, drivers
from devtools.ray_heads import OwnHead
from devtools.servers import environment
from plugin_core import FailureConfig, LocalCluster, RunConfig, ScalingConfig, TrainSpec
from plugin_core.clusters import local_head
from plugin_core.specs import Limits

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("worker", "driver", "everything")
BETWEEN_S, APART_S = (60.0, 120.0), 20.0


def schedule(seconds: float, seed: int) -> list[tuple[float, str]]:
    """When something is killed, in seconds since the first step, and what is killed."""
    draw, at, found = random.Random(seed), 0.0, []
    while (at := at + draw.uniform(*BETWEEN_S)) < seconds:
        found.append((at, draw.choice(KINDS)))
    return found


class Way(Protocol):
    title: str
    by_hand: int

    def start(self) -> None: ...

    def kill(self, kind: str, worker: int) -> None: ...

    def look_after(self) -> None: ...

    def end(self) -> None:
        """Wait until the training has ended by itself."""

    def close(self) -> None:
        """Leave no process behind, whatever happened."""


class Step:
    title = "a step"

    def __init__(self, folder: Path):
        self.by_hand = 0
        self._folder = folder

    def start(self) -> None:
        spec = TrainSpec(
            framework="torch",
            train_loop_per_worker="benchmarks.kills_ways:train_loop",
            train_loop_config={"folder": str(self._folder)},
            scaling_config=ScalingConfig(num_workers=WORKERS),
            run_config=RunConfig(
                name="run", storage_path=f"{self._folder}/runs", failure_config=FailureConfig(max_failures=-1)
            ),
            limits=Limits(max_attempts=10_000),
        )
        self._running = Running(spec, LocalCluster(num_cpus=3))

    def kill(self, kind: str, worker: int) -> None:
        head = local_head.current()
        match kind:
            case "worker":
                _kill(worker)
            case "driver":
                for process in drivers(self._running.rundir.uri):
                    _kill(process.pid)
            case _ if head is not None:
                for pid in [head.keeper_pid, *(process.pid for process in head.processes())]:
                    _kill(pid)

    def look_after(self) -> None:
        """Nothing to do: the step restarts itself."""

    def end(self) -> None:
        self._running.result()

    def close(self) -> None:
        local_head.stop()


class Program:
    """A program that has to be restarted when it ends."""

    title = "torchrun --max-restarts"
    command: ClassVar = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={WORKERS}",
        "--max-restarts=10000",
        "-m",
    ]
    way = "torchrun"

    def __init__(self, folder: Path):
        self.by_hand = 0
        self._folder = folder
        self._environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, *self.command, "benchmarks.kills_ways", self.way, str(self._folder)]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self, kind: str, worker: int) -> None:
        assert self._process is not None
        if kind == "worker":
            _kill(worker)
        elif kind == "driver":
            _kill(self._process.pid)
        else:
            self._kill_everything()

    def _kill_everything(self) -> None:
        assert self._process is not None
        children = []
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(self._process.pid).children(recursive=True)
        for pid in [self._process.pid, *(child.pid for child in children)]:
            _kill(pid)

    def look_after(self) -> None:
        assert self._process is not None
        if self._process.poll() is None or (self._folder / "stop").exists():
            return
        # what it left behind would train alongside its successor
        for process in psutil.process_iter(["cmdline"]):
            if str(self._folder) in (process.info["cmdline"] or []):
                _kill(process.pid)
        self.by_hand += 1
        self.start()

    def end(self) -> None:
        assert self._process is not None
        self._process.wait(120)

    def close(self) -> None:
        if self._process is not None:
            self._kill_everything()
            self._process.wait(30)


class Bare(Program):
    title = "bare Ray Train"
    command: ClassVar = ["-m"]
    way = "bare"

    def __init__(self, folder: Path):
        super().__init__(folder)
        self._program = dict(self._environment)
        self._new_head()

    def _new_head(self) -> None:
        self._head = OwnHead(num_cpus=3, preload=False)
        address = {"BARE_ADDRESS": f"127.0.0.1:{self._head.ports[0]}"}
        self._environment = {**self._program, **self._head.environment, **address}

    def _kill_everything(self) -> None:
        for process in self._head.processes():
            _kill(process.pid)
        super()._kill_everything()

    def look_after(self) -> None:
        assert self._process is not None
        if self._process.poll() is not None and self._head.nodes[0].poll() is not None:
            self._head.close()
            self._new_head()
        super().look_after()

    def close(self) -> None:
        super().close()
        self._head.close()


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def main(seconds: float = 1800.0, seed: float = 0) -> None:
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as name,
        environment({"RAYTRAIN_HOME": f"{name}/home"}),
        contextlib.ExitStack() as begun,
    ):
        folders = [Path(name, each) for each in ("step", "bare", "torchrun")]
        for folder in folders:
            folder.mkdir()
        ways: list[Way] = [Step(folders[0]), Bare(folders[1]), Program(folders[2])]
        trails = [Trail(folder / "trail.jsonl") for folder in folders]
        for way, trail in zip(ways, trails, strict=True):
            begun.callback(way.close)
            way.start()
            trail.wait_for(0)
        began = time.time()
        kills = [
            (at + APART_S * number, number, kind)
            for number in range(len(ways))
            for at, kind in schedule(seconds - APART_S * len(ways), int(seed))
        ]
        for at, number, kind in sorted(kills):
            _wait(ways, began + at)
            ways[number].kill(kind, trails[number].entries(rank=1)[-1]["pid"])
            print(f"{at:5.0f} s: {ways[number].title}: {kind}", flush=True)
        _wait(ways, began + seconds)
        show(ways, trails, began, time.time(), len(kills) // len(ways))
        for folder in folders:
            (folder / "stop").touch()
        for way in ways:
            way.end()


def _wait(ways: list[Way], until: float) -> None:
    while (left := until - time.time()) > 0:
        time.sleep(min(left, 0.3))
        for way in ways:
            way.look_after()


def show(ways: list[Way], trails: list[Trail], began: float, ended: float, kills: int) -> None:
    table = Table(title=f"{ended - began:.0f} s, {kills} kills each, a checkpoint every {EVERY * STEP_S:g} s")
    for name in ("", "effective time", "steps repeated", "longest gap, s", "started again by hand"):
        table.add_column(name, justify="right")
    for way, trail in zip(ways, trails, strict=True):
        entries = [entry for entry in trail.entries() if began <= entry["time"] <= ended]
        different = len({entry["step"] for entry in entries})
        times = [began, *(entry["time"] for entry in entries), ended]
        gap = max(after - before for before, after in itertools.pairwise(times))
        effective = different * STEP_S / (ended - began)
        table.add_row(way.title, f"{effective:.3f}", str(len(entries) - different), f"{gap:.1f}", str(way.by_hand))
    Console().print(table)


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
