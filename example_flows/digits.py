"""Handwritten digits as a Prefect flow: data → train on 2 workers → evaluate → predict.

    python -m example_flows.digits [STORAGE]

STORAGE is a folder or an s3:// URI (default: .demo/runs). Without `PREFECT_API_URL`, it runs on its own temporary
Prefect server, with its files in .demo/prefect. With `MLFLOW_TRACKING_URI`, everything is tracked there.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

if not __package__:  # run as a file: let it find its neighbours
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from example_flows import demo

if __name__ == "__main__":
    demo.prefect_environment()

from prefect import flow, task

from example_flows import digits_steps as steps
from plugin_core import BatchInferSpec, EvaluateSpec, MLflow, RunConfig, ScalingConfig, Threshold, TrainSpec
from plugin_core.specs.results import BatchInferResult, EvaluationResult, TrainResult
from plugin_core.storage.location import Location
from prefect_integration import batch_infer, evaluate, train

make_data = task(steps.make_data)


@flow
def digits(storage: str = demo.STORAGE) -> tuple[TrainResult, EvaluationResult, BatchInferResult]:
    run_config = RunConfig(storage_path=storage)
    server = os.environ.get("MLFLOW_TRACKING_URI")
    tracking = [MLflow(tracking_uri=server, experiment_name="digits")] if server else []
    data = make_data(Location.of(storage).child("digits-data").uri)
    trained = train(
        TrainSpec(
            framework="torch",
            train_loop_per_worker=steps.train_loop,
            train_loop_config={"epochs": 15, "lr": 0.003, "batch_size": 32},
            scaling_config=ScalingConfig(num_workers=2),
            datasets={"train": data["train"]},
            run_config=run_config,
            tracking=tracking,
        )
    )
    evaluation = evaluate(
        EvaluateSpec(
            evaluate=steps.evaluate,
            checkpoint=trained.checkpoint,
            dataset=data["test"],
            thresholds={"accuracy": Threshold(min=0.95)},
            run_config=run_config,
            tracking=tracking,
        )
    )
    predictions = batch_infer(
        BatchInferSpec(
            predictor=steps.Predictor,
            checkpoint=trained.checkpoint,
            dataset=data["test"],
            run_config=run_config,
            tracking=tracking,
        )
    )
    return trained, evaluation, predictions


if __name__ == "__main__":
    sys.exit(demo.show("digits", *digits(*sys.argv[1:2])))
