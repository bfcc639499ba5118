"""What a step costs in TensorFlow, XGBoost and LightGBM: `make bench-frameworks`, or
`python -m benchmarks.frameworks [ROUNDS [FRAMEWORK ...]]`.

Three ways in turn in each round: the framework's own launcher, a program with bare Ray Train, and a step on an embedded
head that only runs meanwhile. TensorFlow: the time of a step of MultiWorkerMirroredStrategy on two workers, compared with
the framework's own launcher in the same round. XGBoost and LightGBM: weak scaling, the time of a boosting round with one
worker divided by that with two workers and twice the rows. Medians of the rounds count.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.frameworks_ways import COLUMNS, ROWS, TRAINERS
from benchmarks.overhead import ROOT, in_turn, warm_head
from devtools.servers import environment

WAYS = {"native": "its own launcher", "bare": "bare Ray Train", "step": "a step"}


def once(framework: str, way: str, workers: int, folder: Path) -> float:
    folder.mkdir(parents=True)
    file = folder / "seconds.json"
    command = [sys.executable, "-m", "benchmarks.frameworks_ways", framework, way, str(workers), str(file)]
    with warm_head() if way == "step" else contextlib.nullcontext(), (folder / "log").open("wb") as log:
        # Keras 3's fit fails under the strategy
        env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TF_USE_LEGACY_KERAS": "1"}
        subprocess.run(command, check=True, cwd=ROOT, env=env, stdout=log, stderr=log)
    found: float = json.loads(file.read_text())
    return found


def main(rounds: int = 5, *frameworks: str) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name, environment({"RAYTRAIN_HOME": f"{name}/home"}):
        for framework in frameworks or TRAINERS:
            sizes = (2,) if framework == "tensorflow" else (1, 2)
            taken: dict[str, list[list[float]]] = {way: [] for way in WAYS}
            for number in range(rounds):
                for way in in_turn(WAYS, number):
                    folder = Path(name, f"{framework}-{way}-{number}")
                    taken[way].append([once(framework, way, size, folder / str(size)) for size in sizes])
            show(framework, taken)


def show(framework: str, taken: dict[str, list[list[float]]]) -> None:
    scaling = framework != "tensorflow"
    data = f", {ROWS:,} rows of {COLUMNS} numbers for each worker" if scaling else ""
    title = f"{framework}, {len(taken['native'])} rounds{data}"
    heads = ("one worker, s", "two, s", "weak scaling") if scaling else ("a step, ms", "÷ its own launcher")
    table = Table("", *heads, "of the rounds", title=title)
    for way, words in WAYS.items():
        if scaling:
            one, two = ([times[which] for times in taken[way]] for which in (0, 1))
            ratios = [first / second for first, second in zip(one, two, strict=True)]
            cells = [f"{statistics.median(one):.3f}", f"{statistics.median(two):.3f}"]
        else:
            ratios = [mine[0] / base[0] for mine, base in zip(taken[way], taken["native"], strict=True)]
            cells = [f"{statistics.median(mine[0] for mine in taken[way]) * 1000:.2f}"]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        table.add_row(words, *cells, f"{statistics.median(ratios):.3f}", spread)
    Console().print(table)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]), *sys.argv[2:])
