"""What tracking costs a training: `make bench-tracking`, or `python -m benchmarks.tracking [REPORTS [PAIRS]]`.

The same training of REPORTS reports (as many per second as Ray Train takes) without a tracker and with a real MLflow
server and TensorBoard, on one warm Ray head in one run. The time runs from the first report to the last.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from devtools.servers import embedded_head, mlflow_server
from plugin_core import MLflow, RunConfig, ScalingConfig, TensorBoard, TrainSpec, run
from plugin_core.runs.directory import RunDir
from plugin_core.runs.journal import read_reports


def train_loop(config: dict[str, Any]) -> None:
    import ray.train

    for step in range(config["reports"]):
        ray.train.report({"step": step, "loss": 1 / (step + 1), "accuracy": step / config["reports"], "lr": 0.1})


def seconds(folder: Path, name: str, reports: int, trackers: list[Any]) -> float:
    spec = TrainSpec(
        framework="python",
        train_loop_per_worker=train_loop,
        train_loop_config={"reports": reports},
        scaling_config=ScalingConfig(num_workers=1),
        tracking=trackers,
        run_config=RunConfig(name=name, storage_path=str(folder)),
    )
    result = run(spec)
    assert result.warnings == [], result.warnings
    entries = read_reports(RunDir.at(result.run.uri))
    assert len(entries) == reports
    first, last = entries[0]["time"], entries[-1]["time"]
    return float(last - first)


def main(reports: int = 5000, pairs: int = 1) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        with embedded_head(folder / "ray"), mlflow_server(folder / "mlflow") as uri:
            trackers = [MLflow(tracking_uri=uri), TensorBoard()]
            seconds(folder, "warm", 10, [])
            rows = [
                (seconds(folder, f"bare-{n}", reports, []), seconds(folder, f"tracked-{n}", reports, trackers))
                for n in range(pairs)
            ]
    table = Table("pair", "bare s", "tracked s", "tracked ÷ bare", title=f"{reports} reports of 4 metrics")
    for number, (bare, tracked) in enumerate(rows):
        table.add_row(str(number), f"{bare:.1f}", f"{tracked:.1f}", f"{tracked / bare:.3f}")
    Console().print(table)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
