"""Search, train with what was found, evaluate, promote: the digits in four tasks, each passed to the next by reference.

The functions are those of `example_flows/digits_steps.py`: the repository's root has to be on PYTHONPATH.
"""

import os
from pathlib import Path

from airflow.sdk import dag, task

from airflow_provider.operators import PromoteModelOperator, RayEvaluateOperator, RayTrainOperator, RayTuneOperator

STEPS = "example_flows.digits_steps"
STORAGE = os.environ.get("EXAMPLE_STORAGE") or str(Path.home() / "ray_results")


@dag(schedule=None, default_args={"storage_path": STORAGE}, tags=["example"], render_template_as_native_obj=True)
def tune_and_train():
    @task
    def make_data() -> dict[str, str]:
        from example_flows.digits_steps import make_data

        return make_data(f"{STORAGE}/digits-data")

    data = make_data()
    loop = {"train_loop_per_worker": f"{STEPS}:train_loop", "datasets": {"train": data["train"]}}
    tune = RayTuneOperator(
        task_id="tune",
        train={**loop, "train_loop_config": {"epochs": 2, "batch_size": 64}},
        param_space={"train_loop_config": {"lr": {"loguniform": [0.001, 0.02]}}},
        metric="loss",
        mode="min",
        num_samples=2,
    )
    train = RayTrainOperator(
        task_id="train",
        train_loop_config={
            "epochs": 12,
            "batch_size": 64,
            "lr": "{{ ti.xcom_pull('tune')['best_config']['train_loop_config']['lr'] }}",
        },
        scaling_config={"num_workers": 2},
        **loop,
    )
    evaluate = RayEvaluateOperator(
        task_id="evaluate",
        predictor=f"{STEPS}:Predictor",
        task="classification",
        checkpoint=train.output,
        dataset=data["test"],
        thresholds={"accuracy": {"min": 0.9}},
    )
    promote = PromoteModelOperator(
        task_id="promote", result=evaluate.output, name="digits-tuned", registry=f"{STORAGE}/_models"
    )
    tune >> train >> evaluate >> promote


tune_and_train()
