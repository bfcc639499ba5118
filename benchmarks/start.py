"""How long a start takes: `make bench-start`, or `python -m benchmarks.start [ROUNDS]`.

From the start of a user's process until the train function runs in both workers (or the evaluation's function runs), on
one machine, five ways in turn in each round: torchrun; a program with bare Ray Train, which starts its own Ray; a step on
the embedded head, which has to be started; the same on a running head; an evaluation there. The medians count, as
ratios to bare Ray Train in the same run. "Until the end" means until that process has exited.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.start_ways import WORKERS
from devtools.servers import environment
from plugin_core.clusters import local_head

ROOT = Path(__file__).resolve().parents[1]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORKERS}"]
#: name → target as a ratio to bare Ray Train, if there is one
WAYS = {
    "torchrun": None,
    "bare Ray Train": None,
    "a step, cold head": 1.0,
    "a step, warm head": 0.4,
    "an evaluation, warm head": 0.3,
}


@dataclass
class Start:
    """Seconds from the call until the function runs, and until the process has exited."""

    function_s: float
    end_s: float


def start(way: str, folder: Path, number: int) -> Start:
    cold = way.endswith("cold head")
    marks = folder / f"{way.replace(' ', '-').replace(',', '')}-{number}"
    marks.mkdir(parents=True)
    kind = {"torchrun": "torchrun", "bare Ray Train": "bare"}.get(way, "evaluation" if "evaluation" in way else "train")
    launcher = TORCHRUN if kind == "torchrun" else []
    command = [sys.executable, *launcher, "-m", "benchmarks.start_ways", kind, str(marks), str(folder)]
    home = {"RAYTRAIN_HOME": str(folder / ("cold" if cold else "warm"))}
    log = (marks / "log").open("wb")
    began = time.time()
    subprocess.run(
        command, check=True, cwd=ROOT, env={**os.environ, **home, "PYTHONPATH": str(ROOT)}, stdout=log, stderr=log
    )
    ended = time.time()
    if cold:
        with environment(home):
            local_head.stop()
    workers = range(1 if kind == "evaluation" else WORKERS)
    return Start(max(float((marks / str(rank)).read_text()) for rank in workers) - began, ended - began)


def main(rounds: int = 5) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        (folder / "a-checkpoint").mkdir()
        (folder / "a-checkpoint" / "weights").write_text("1")
        with environment({"RAYTRAIN_HOME": str(folder / "warm")}):
            local_head.ensure()
            try:
                for way in list(WAYS)[1:]:
                    start(way, folder, 0)  # files in the page cache
                taken: dict[str, list[Start]] = {way: [] for way in WAYS}
                for number in range(1, rounds + 1):
                    for way in WAYS:
                        taken[way].append(start(way, folder, number))
            finally:
                local_head.stop()
    show(taken)


def show(taken: dict[str, list[Start]]) -> None:
    bare = statistics.median(each.function_s for each in taken["bare Ray Train"])
    (rounds,) = {len(starts) for starts in taken.values()}
    table = Table(
        "", "function runs, s", "÷ bare", "target", "spread", "until the end, s", title=f"starts, {rounds} rounds"
    )
    for way, starts in taken.items():
        function = [each.function_s for each in starts]
        median, target = statistics.median(function), WAYS[way]
        spread = f"{min(function):.1f} to {max(function):.1f}"
        end = statistics.median(each.end_s for each in starts)
        table.add_row(way, f"{median:.1f}", f"{median / bare:.2f}", f"{target or ''}", spread, f"{end:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
