"""What a training costs while it trains: `make bench-overhead`, or `python -m benchmarks.overhead [ROUNDS]`.

The same DistributedDataParallel steps on two workers and two busy cores, three ways in turn in each round: torchrun, a
program with bare Ray Train, a step on an embedded head that only runs meanwhile. Each is compared with torchrun in the
same round; the medians count. Shown beside them is the CPU time of rank 0, on which other load has less influence. Then,
in the first round, how long `report()` takes with a small checkpoint, and how much of a core the processes other than the
workers use while a step trains.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.overhead_ways import WORKERS
from devtools.chaos import wait_until
from devtools.servers import environment
from plugin_core import RunConfig, ScalingConfig, TrainSpec, run
from plugin_core.clusters import local_head

ROOT = Path(__file__).resolve().parents[1]
STEPS, REPORTS, QUIET_S = 3_000, 40, 30.0
WAYS = {"torchrun": "torchrun", "bare": "bare Ray Train", "step": "a step"}


def once(way: str, folder: Path, reports: int) -> dict[str, float]:
    folder.mkdir(parents=True)
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORKERS}"] if way == "torchrun" else []
    command = [sys.executable, *launcher, "-m", "benchmarks.overhead_ways", way, str(folder), str(STEPS), str(reports)]
    with (folder / "log").open("wb") as log:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        subprocess.run(command, check=True, cwd=ROOT, env=env, stdout=log, stderr=log)
    found: dict[str, float] = json.loads((folder / f"{way}.json").read_text())
    return found


def shares(head: local_head.Head, folder: Path) -> dict[str, float]:
    """Kind of process, except the workers → percent of a core that it uses while two workers train."""
    ready = folder / "quiet"
    spec = TrainSpec(
        framework="python",
        train_loop_per_worker="benchmarks.overhead_ways:quiet_loop",
        train_loop_config={"file": str(ready), "seconds": QUIET_S + 20},
        scaling_config=ScalingConfig(num_workers=WORKERS),
        run_config=RunConfig(name="quiet", storage_path=str(folder)),
    )
    thread = threading.Thread(target=run, args=(spec,), kwargs={"progress": False})
    thread.start()
    wait_until(ready.exists)
    time.sleep(10)  # let the start-up activity settle
    before, began = _cpu(head), time.monotonic()
    time.sleep(QUIET_S)
    after, took = _cpu(head), time.monotonic() - began
    thread.join()
    used: dict[str, float] = {}
    for pid, (kind, spent) in after.items():
        if pid in before:
            used[kind] = used.get(kind, 0.0) + 100 * (spent - before[pid][1]) / took
    return used


def _cpu(head: local_head.Head) -> dict[int, tuple[str, float]]:
    found = {}
    for process in [*head.processes(), psutil.Process(head.keeper_pid)]:
        try:
            times, words = process.cpu_times(), process.cmdline()
        except psutil.Error:
            continue
        if words and "RayTrainWorker" not in words[0]:
            found[process.pid] = (_kind(words), times.user + times.system)
    return found


def _kind(words: list[str]) -> str:
    if words[0].startswith("ray"):
        return words[0]
    words = " ".join(words).split()  # a forked driver has a title instead
    named = [Path(word).name for word in words if not word.startswith("-") and "=" not in word]
    if "plugin_core.driver" in words:
        return "the driver"
    return next((word for word in named if not word.startswith(("python", "bash", "sh"))), named[0])


@contextlib.contextmanager
def warm_head() -> Iterator[local_head.Head]:
    head = local_head.ensure()
    try:
        time.sleep(5)  # let its own start end
        yield head
    finally:
        local_head.stop()


def in_turn(ways: Iterable[str], number: int) -> list[str]:
    """The ways in the order of round `number`: another one comes first in each."""
    order = list(ways)
    first = number % len(order)
    return order[first:] + order[:first]


def main(rounds: int = 9) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name, environment({"RAYTRAIN_HOME": f"{name}/home"}):
        folder = Path(name)
        taken: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
        for number in range(rounds):
            for way in in_turn(WAYS, number):
                with warm_head() if way == "step" else contextlib.nullcontext():
                    taken[way].append(once(way, folder / f"{way}-{number}", 0 if number else REPORTS))
        with warm_head() as head:
            used = shares(head, folder)
    show(taken, used)


def show(taken: dict[str, list[dict[str, float]]], used: dict[str, float]) -> None:
    rounds = len(taken["torchrun"])
    heads = f"{STEPS:,} steps, s", "÷ torchrun", "of the rounds", "÷ bare", "CPU ÷ torchrun's", "report(), p50, s"
    table = Table("", *heads, title=f"while it trains, {rounds} rounds")
    for way, title in WAYS.items():
        ratios, cpu, to_bare = (
            sorted(mine[key] / base[key] for mine, base in zip(taken[way], taken[other], strict=True))
            for key, other in (("steps_s", "torchrun"), ("cpu_s", "torchrun"), ("steps_s", "bare"))
        )
        median = statistics.median(each["steps_s"] for each in taken[way])
        report = taken[way][0].get("report_s")
        table.add_row(
            title,
            f"{median:.2f}",
            f"{statistics.median(ratios):.3f}",
            f"{ratios[0]:.2f} to {ratios[-1]:.2f}",
            f"{statistics.median(to_bare):.3f}",
            f"{statistics.median(cpu):.3f}",
            f"{report:.3f}" if report is not None else "",
        )
    Console(width=120).print(table)
    table = Table("processes other than the workers", "% of a core")
    for kind, percent in sorted(used.items(), key=lambda item: -item[1]):
        if percent >= 0.05:
            table.add_row(kind, f"{percent:.1f}")
    table.add_row("together", f"{sum(used.values()):.1f}")
    Console().print(table)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
