"""What checking a spec costs while a DAG file is parsed: `make bench-parsing`.

Each operator is created as in a DAG file, without templates in its fields, in turn with Airflow's own EmptyOperator.
Prints the median of many, in milliseconds; the target is 20 ms each.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from airflow.providers.common.compat.sdk import DAG
from airflow.providers.standard.operators.empty import EmptyOperator
from rich.console import Console
from rich.table import Table

from airflow_provider.operators import RayEvaluateOperator, RayJobOperator, RayTrainOperator, RayTuneOperator

TIMES, TARGET_MS = 100, 20.0
STEPS = "example_flows.digits_steps"
TRAIN: dict[str, Any] = {
    "train_loop_per_worker": f"{STEPS}:train_loop",
    "train_loop_config": {"epochs": 12, "lr": 3e-3, "batch_size": 64},
    "scaling_config": {"num_workers": 2},
    "datasets": {"train": "s3://bucket/train.parquet"},
}
SPACE = {"train_loop_config": {"lr": {"loguniform": [1e-4, 1e-1]}}}
WAYS: dict[str, Callable[[str], Any]] = {
    "EmptyOperator": lambda name: EmptyOperator(task_id=name),
    "RayTrainOperator": lambda name: RayTrainOperator(task_id=name, **TRAIN),
    "RayEvaluateOperator": lambda name: RayEvaluateOperator(
        task_id=name,
        evaluate=f"{STEPS}:evaluate",
        checkpoint="s3://bucket/runs/a/checkpoint_a001_000001",
        dataset="s3://bucket/test.parquet",
        thresholds={"accuracy": {"min": 0.95}},
    ),
    "RayTuneOperator": lambda name: RayTuneOperator(
        task_id=name, train=TRAIN, param_space=SPACE, metric="loss", mode="min", num_samples=8
    ),
    "RayJobOperator": lambda name: RayJobOperator(task_id=name, command=["python", "script.py"]),
}


def main() -> None:
    took: dict[str, list[float]] = {name: [] for name in WAYS}
    with DAG("parsed"):
        for number in range(TIMES + 1):
            for name, make in WAYS.items():
                began = time.perf_counter()
                make(f"{name}-{number}")
                if number:  # the first one imports
                    took[name].append(1000 * (time.perf_counter() - began))
    table = Table("operator", "ms", "target")
    for name, each in took.items():
        table.add_row(name, f"{statistics.median(each):.2f}", "" if name == "EmptyOperator" else f"{TARGET_MS:g}")
    Console().print(table)


if __name__ == "__main__":
    main()
