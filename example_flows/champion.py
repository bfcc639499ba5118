"""Digits: data → train → evaluate → promote or keep. Another flow predicts with the champion. Tracked in MLflow.

python -m example_flows.champion        serves both flows
"""

import os
from pathlib import Path

from prefect import flow, get_run_logger, serve, task

from example_flows import digits_steps as steps
from plugin_core import BatchInferSpec, EvaluateSpec, MLflow, RunConfig, ScalingConfig, TrainSpec, get_model
from prefect_integration import batch_infer, cancel_ray_jobs, evaluate, promote, report_ray_jobs, train

STORAGE = os.environ.get("EXAMPLE_STORAGE") or str(Path.home() / "ray_results")
SERVER = os.environ.get("MLFLOW_TRACKING_URI") or "http://127.0.0.1:5000"
REGISTRY = f"mlflow:{SERVER}"
TRACKING = [MLflow(tracking_uri=SERVER, experiment_name="digits")]
HOOKS = {"on_cancellation": [cancel_ray_jobs], "on_crashed": [report_ray_jobs]}

make_data = task(steps.make_data)  # {"train": a file, "test": a file}


@flow(**HOOKS)
def train_champion(storage: str = STORAGE) -> None:
    run_config = RunConfig(storage_path=storage)
    data = make_data(f"{storage}/digits-data")
    trained = train(
        TrainSpec(
            train_loop_per_worker=steps.train_loop,
            train_loop_config={"epochs": 12, "lr": 0.003, "batch_size": 64},
            scaling_config=ScalingConfig(num_workers=2),
            datasets={"train": data["train"]},
            run_config=run_config,
            tracking=TRACKING,
        ),
        key="train",
    )
    judged = evaluate(
        EvaluateSpec(
            evaluate=steps.evaluate,
            checkpoint=trained,
            dataset=data["test"],
            thresholds={"accuracy": {"min": 0.9}},
            run_config=run_config,
            tracking=TRACKING,
        ),
        key="evaluate",
    )
    if judged.passed:
        promote(judged, "digits", registry=REGISTRY)
    else:
        get_run_logger().warning("the champion stays: %s", judged.why)


@flow(**HOOKS)
def predict_with_champion(storage: str = STORAGE) -> None:
    champion = get_model("digits", registry=REGISTRY)
    if champion is None:
        raise LookupError("nothing was promoted yet")
    get_run_logger().info("version %d of %s: %s", champion.version, champion.name, champion.metrics)
    batch_infer(
        BatchInferSpec(
            predictor=steps.Predictor,
            checkpoint=champion.checkpoint,
            dataset=make_data(f"{storage}/digits-data")["test"],
            output_columns=["label", "prediction"],
            run_config=RunConfig(storage_path=storage),
            tracking=TRACKING,
        )
    )


if __name__ == "__main__":
    serve(
        train_champion.to_deployment("weekly", cron="0 3 * * 0"),
        predict_with_champion.to_deployment("daily", cron="0 6 * * *"),
    )
