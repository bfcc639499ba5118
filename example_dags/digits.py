"""scikit-learn's digits: train a small network on two workers, evaluate its checkpoint, predict with it.

The functions are those of `example_flows/digits_steps.py`, unchanged: the repository's root has to be on PYTHONPATH.
"""

import os
from pathlib import Path

from airflow.sdk import dag, task

from airflow_provider.operators import RayBatchInferOperator, RayEvaluateOperator, RayTrainOperator

STEPS = "example_flows.digits_steps"
STORAGE = os.environ.get("EXAMPLE_STORAGE") or str(Path.home() / "ray_results")
MLFLOW = os.environ.get("MLFLOW_TRACKING_URI")
TRACKING = [{"type": "mlflow", "tracking_uri": MLFLOW, "experiment_name": "digits"}] if MLFLOW else None


@dag(
    schedule=None,
    default_args={"storage_path": STORAGE, "tracking": TRACKING},
    tags=["example"],
    render_template_as_native_obj=True,
)
def digits():
    @task
    def make_data() -> dict[str, str]:
        from example_flows.digits_steps import make_data

        return make_data(f"{STORAGE}/digits-data")

    data = make_data()
    train = RayTrainOperator(
        task_id="train",
        train_loop_per_worker=f"{STEPS}:train_loop",
        train_loop_config={"epochs": 12, "lr": 3e-3, "batch_size": 64},
        scaling_config={"num_workers": 2},
        datasets={"train": data["train"]},
    )
    evaluate = RayEvaluateOperator(
        task_id="evaluate",
        evaluate=f"{STEPS}:evaluate",
        checkpoint=train.output,
        dataset=data["test"],
        thresholds={"accuracy": {"min": 0.95}},
    )
    evaluate >> RayBatchInferOperator(
        task_id="batch_infer", predictor=f"{STEPS}:Predictor", checkpoint=train.output, dataset=data["test"]
    )


digits()
