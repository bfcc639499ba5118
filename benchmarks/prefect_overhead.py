"""What the Prefect task adds to a step: `train(spec)` in a flow against the core's `run(spec)`, as `raytrain run` does.

Side by side on one warm Ray head and one Prefect server:

    python -m benchmarks.prefect_overhead [PAIRS]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from prefect import flow
from rich.console import Console
from rich.table import Table

from devtools.prefect_server import prefect_server
from devtools.servers import embedded_head
from plugin_core import RunConfig, ScalingConfig, TrainSpec, run
from prefect_integration import train


def train_loop(config: dict[str, Any]) -> None:
    import time

    import ray.train

    for epoch in range(config["epochs"]):
        time.sleep(0.2)
        ray.train.report({"epoch": epoch, "loss": 1 / (epoch + 1)})


def spec_of(storage: Path, name: str) -> TrainSpec:
    return TrainSpec(
        framework="python",
        train_loop_per_worker=train_loop,
        train_loop_config={"epochs": 20},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(storage_path=str(storage), name=name),
    )


@flow(log_prints=False)
def timed(storage: str, number: int) -> float:
    began = time.monotonic()
    train(spec_of(Path(storage), f"task-{number}"))
    return time.monotonic() - began


def core(storage: Path, number: int) -> float:
    began = time.monotonic()
    run(spec_of(storage, f"core-{number}"))
    return time.monotonic() - began


def main(pairs: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        with embedded_head(home / "ray"), prefect_server(home / "prefect"):
            core(home, -1), timed(str(home), -1)  # the first of each imports and warms up
            rows = [(core(home, number), timed(str(home), number)) for number in range(pairs)]
    table = Table("pair", "core s", "task s", "task − core s", "task / core", title="what the Prefect task adds")
    for number, (alone, task) in enumerate(rows):
        table.add_row(str(number), f"{alone:.2f}", f"{task:.2f}", f"{task - alone:+.2f}", f"{task / alone:.2f}")
    alone, task = (statistics.median(column) for column in zip(*rows, strict=True))
    table.add_row("median", f"{alone:.2f}", f"{task:.2f}", f"{task - alone:+.2f}", f"{task / alone:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 5)
