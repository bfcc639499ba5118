"""What a kill costs: `make bench-recovery`, or `python -m benchmarks.recovery [ROUNDS [SECONDS]]`.

"Cold start" is the time from the call of `run()` on a warm head to the first training step. Each round has one cold
start and one kill of each kind; the medians count, as ratios to the cold start's. Goodput is useful step time ÷ wall
time, where a step that is repeated after a kill counts once.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from devtools.chaos import Running, Trail, drivers, kill, kill_head, spec_at, wait_until
from devtools.servers import environment
from plugin_core import FailureConfig, LocalCluster
from plugin_core.clusters import local_head

STEP_S = 0.2
EVERY = 5


@dataclass
class Cost:
    """What one kill costs, in seconds and in steps."""

    detected_s: float
    next_step_s: float
    lost: int
    repeated: int


def cold_start(cluster: LocalCluster, folder: Path) -> float:
    folder.mkdir()
    trail = Trail(folder / "cold.jsonl")
    began = time.time()
    running = Running(spec_at(folder, trail.file, "cold", loop={"steps": 5, "every": EVERY, "step_s": STEP_S}), cluster)
    first: float = trail.wait_for(0)["time"]
    running.result()
    return first - began


def cost_of(what: str, cluster: LocalCluster, folder: Path) -> Cost:
    """Kill once, between two checkpoints."""
    trail = Trail(folder / f"{what}.jsonl")
    loop = {"steps": 30, "every": EVERY, "step_s": STEP_S}
    running = Running(spec_at(folder, trail.file, what, loop=loop), cluster)
    entry = trail.wait_for(EVERY * 2 + 2)
    killed = time.time()
    KILLS[what](running, trail)
    detected = wait_until(lambda: _told(running, killed, what))
    after = wait_until(lambda: next((e for e in trail.entries() if e["time"] > killed and e["pid"] != entry["pid"]), None))
    running.result()
    steps = set(trail.steps())
    return Cost(detected - killed, after["time"] - killed, len(set(range(30)) - steps), trail.repeated())


def _told(running: Running, killed: float, what: str) -> float | None:
    """When the loss was first reported: by the controller in the journal, or by the supervisor's decision."""
    for event in list(running.events):
        if what == "worker" and event.kind == "phase" and event.data["phase"] == "restarting":
            return float(event.data["time"])
    if what != "worker" and any("was lost" in text for text in running.texts()):
        return time.time()
    return None


def _kill_worker(running: Running, trail: Trail) -> None:
    kill(trail.entries(rank=1)[-1]["pid"])


def _kill_driver(running: Running, trail: Trail) -> None:
    for process in drivers(running.rundir.uri):
        kill(process)


def _kill_head(running: Running, trail: Trail) -> None:
    kill_head()


KILLS: dict[str, Callable[[Running, Trail], None]] = {
    "worker": _kill_worker,
    "driver": _kill_driver,
    "head": _kill_head,
}


def goodput(cluster: LocalCluster, folder: Path, seconds: float, kills: tuple[str, ...]) -> tuple[float, Trail]:
    """A run of `seconds` seconds of steps, with one of `kills` after each third; returns useful ÷ wall, and the
    steps."""
    steps = int(seconds / STEP_S)
    trail = Trail(folder / f"goodput-{len(kills)}.jsonl")
    loop = {"steps": steps, "every": EVERY, "step_s": STEP_S}
    spec = spec_at(
        folder,
        trail.file,
        f"goodput-{len(kills)}",
        loop=loop,
        run_config={"failure_config": FailureConfig(max_failures=9)},
        limits={"max_attempts": 9},
    )
    began = time.monotonic()
    running = Running(spec, cluster)
    for number, what in enumerate(kills, 1):
        at = began + number * seconds / 3
        time.sleep(max(0.0, at - time.monotonic()))
        trail.wait_for(0)
        KILLS[what](running, trail)
    running.result(timeout_s=seconds * 4 + 300)
    return steps * STEP_S / (time.monotonic() - began), trail


def main(rounds: float = 5, seconds: float = 180.0) -> None:
    console = Console()
    with tempfile.TemporaryDirectory() as place, environment({"RAYTRAIN_HOME": f"{place}/home"}):
        folder, cluster = Path(place), LocalCluster(num_cpus=3)
        try:
            local_head.ensure(num_cpus=3)
            cold_start(cluster, folder / "warm-up")
            starts: list[float] = []
            costs: dict[str, list[Cost]] = {what: [] for what in KILLS}
            for number in range(int(rounds)):
                place_of_round = folder / f"{number}"
                starts.append(cold_start(cluster, place_of_round))
                for what, taken in costs.items():
                    taken.append(cost_of(what, cluster, place_of_round))
            base = statistics.median(starts)
            table = Table(title=f"one kill, {len(starts)} rounds; the cold start of a worker group takes {base:.1f} s")
            kept = f"steps repeated, at most (of {EVERY} between checkpoints)"
            for name in ("killed", "→ detected, s", "→ next step, s", "÷ cold start", "steps lost", kept):
                table.add_column(name, justify="right")
            for what, taken in costs.items():
                detected = statistics.median(cost.detected_s for cost in taken)
                after = statistics.median(cost.next_step_s for cost in taken)
                lost, repeated = sum(cost.lost for cost in taken), max(cost.repeated for cost in taken)
                table.add_row(what, f"{detected:.2f}", f"{after:.2f}", f"{after / base:.2f}", str(lost), str(repeated))
            console.print(table)
            plain, _ = goodput(cluster, folder, seconds, ())
            kills = ("worker", "driver", "worker")[: max(1, int(seconds // 60))]
            killed, trail = goodput(cluster, folder, seconds, kills)
            table = Table(title=f"goodput of {seconds:g} s of steps")
            for name in ("kills", "useful ÷ wall", "÷ without kills", "steps repeated"):
                table.add_column(name, justify="right")
            table.add_row("none", f"{plain:.2f}", "1.00", "0")
            table.add_row(str(len(kills)), f"{killed:.2f}", f"{killed / plain:.2f}", str(trail.repeated()))
            console.print(table)
        finally:
            local_head.stop()


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
