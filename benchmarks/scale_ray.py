"""The memory that Ray keeps per report: `python -m benchmarks.scale ray [REPORTS]`.

A real training without checkpoints. The memory (USS) of the worker, and of the driver, which contains Ray Train's
controller and our parts, is measured after a fifth of the reports and at the end; the growth is extrapolated to a
million reports.
"""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from devtools.servers import embedded_head
from plugin_core import RunConfig, ScalingConfig, TrainSpec, run
from plugin_core.runs.directory import RunDir
from plugin_core.runs.history import History

#: The words by which the processes are recognised.
NAMES = {"driver": "-m plugin_core.driver", "worker": "ray::RayTrainWorker"}


def train_loop(config: dict[str, Any]) -> None:
    import time

    import ray.train

    for step in range(config["reports"]):
        ray.train.report({"step": step, "loss": 1 / (step + 1), "accuracy": step / config["reports"], "lr": 0.1})
    time.sleep(5)  # so that both are still there when they are measured


def memory_of() -> dict[str, int]:
    found = {}
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        for name, mark in NAMES.items():
            if mark in line and "bash" not in line:
                found[name] = max(found.get(name, 0), int(process.memory_full_info().uss))
    return found


def main(reports: int = 3_000) -> None:
    samples: list[tuple[int, dict[str, int]]] = []
    with tempfile.TemporaryDirectory(dir="/tmp") as name, embedded_head(Path(name, "ray")):
        spec = TrainSpec(
            framework="python",
            train_loop_per_worker=train_loop,
            train_loop_config={"reports": reports},
            scaling_config=ScalingConfig(num_workers=1),
            run_config=RunConfig(name="run", storage_path=str(Path(name, "runs"))),
        )
        over = threading.Event()

        def sample() -> None:
            rundir = RunDir.of(spec)
            while not over.wait(1.0):
                try:
                    samples.append((History.read(rundir).reports, memory_of()))
                except psutil.Error:
                    continue

        thread = threading.Thread(target=sample)
        thread.start()
        began = time.monotonic()
        try:
            run(spec)
        finally:
            over.set()
            thread.join()
        took = time.monotonic() - began
    whole = [(count, memory) for count, memory in samples if len(memory) == len(NAMES) and count >= reports / 5]
    (first, before), (last, after) = whole[0], max(whole, key=lambda sample: sample[0])
    table = Table(
        "", "grew by", "for a million", title=f"Ray's processes, from report {first:,} to {last:,} ({took:.0f} s)"
    )
    for name in NAMES:
        grown = (after[name] - before[name]) / 1e6
        table.add_row(name, f"{grown:.1f} MB", f"{grown / max(1, last - first) * 1e6:.0f} MB")
    Console().print(table)
