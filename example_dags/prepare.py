"""Prepare data with Ray Data → train → evaluate → predict.

The functions are those of `example_flows`, unchanged: the repository's root has to be on PYTHONPATH.
"""

import os
from pathlib import Path
from typing import Any

from airflow.sdk import dag, task

from airflow_provider.operators import RayBatchInferOperator, RayEvaluateOperator, RayTrainOperator

STEPS = "example_flows.digits_steps"
STORAGE = os.environ.get("EXAMPLE_STORAGE") or str(Path.home() / "ray_results")


@dag(schedule=None, default_args={"storage_path": STORAGE}, tags=["example"], render_template_as_native_obj=True)
def prepare():
    @task
    def make_raw() -> list[str]:
        from example_flows.prepare_steps import make_raw

        return make_raw(f"{STORAGE}/raw-digits")

    @task.ray
    def prepare(raw) -> dict[str, Any]:
        """Runs on the cluster. Kill it, and it continues with the next file."""
        from example_flows import prepare_steps

        return prepare_steps.prepare(raw)

    data = prepare(make_raw())
    test = {"path": data["test"], "format": "parquet"}
    train = RayTrainOperator(
        task_id="train",
        train_loop_per_worker=f"{STEPS}:train_loop",
        train_loop_config={"epochs": 15, "lr": 3e-3, "batch_size": 32},
        scaling_config={"num_workers": 2},
        datasets={"train": {"path": data["train"], "format": "parquet"}},
    )
    evaluate = RayEvaluateOperator(
        task_id="evaluate",
        evaluate=f"{STEPS}:evaluate",
        checkpoint=train.output,
        dataset=test,
        thresholds={"accuracy": {"min": 0.93}},
    )
    evaluate >> RayBatchInferOperator(
        task_id="batch_infer", predictor=f"{STEPS}:Predictor", checkpoint=train.output, dataset=test
    )


prepare()
