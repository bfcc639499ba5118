"""Prepare data with Ray Data → train → evaluate → predict, as a Prefect flow.

    python -m example_flows.prepare [STORAGE]

`prepare` is any function, run on the cluster. It saves which files are done: kill it, and it continues with the next.
"""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:  # run as a file: let it find its neighbours
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from example_flows import demo

if __name__ == "__main__":
    demo.prefect_environment()

from prefect import flow, task

from example_flows import digits_steps as digits
from example_flows import prepare_steps as steps
from plugin_core import BatchInferSpec, EvaluateSpec, RunConfig, ScalingConfig, Threshold, TrainSpec
from plugin_core.specs.results import BatchInferResult, EvaluationResult, TrainResult
from plugin_core.storage.location import Location
from prefect_integration import batch_infer, evaluate, ray_task, train

make_raw = task(steps.make_raw)


@flow
def prepare(storage: str = demo.STORAGE) -> tuple[TrainResult, EvaluationResult, BatchInferResult]:
    run_config = RunConfig(storage_path=storage)
    raw = make_raw(Location.of(storage).child("raw-digits").uri)
    data = ray_task(steps.prepare, key="prepare", run_config=run_config)(raw)
    trained = train(
        TrainSpec(
            framework="torch",
            train_loop_per_worker=digits.train_loop,
            train_loop_config={"epochs": 15, "lr": 0.003, "batch_size": 32},
            scaling_config=ScalingConfig(num_workers=2),
            datasets={"train": {"path": data["train"], "format": "parquet"}},
            run_config=run_config,
        )
    )
    test = {"path": data["test"], "format": "parquet"}
    judged = evaluate(
        EvaluateSpec(
            evaluate=digits.evaluate,
            checkpoint=trained.checkpoint,
            dataset=test,
            thresholds={"accuracy": Threshold(min=0.93)},
            run_config=run_config,
        )
    )
    predicted = batch_infer(
        BatchInferSpec(predictor=digits.Predictor, checkpoint=trained.checkpoint, dataset=test, run_config=run_config)
    )
    return trained, judged, predicted


if __name__ == "__main__":
    sys.exit(demo.show("prepare", *prepare(*sys.argv[1:2])))
