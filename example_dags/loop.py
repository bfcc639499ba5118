"""The whole loop, month after month: tune → retrain against the champion → predict with the champion.

The month is a parameter of the DAG run: January has few digits, February has all, March's labels are corrupted. The
functions are those of `example_flows/digits_steps.py`: the repository's root has to be on PYTHONPATH.
"""

import os
from pathlib import Path

from airflow.sdk import Param, dag, task

from airflow_provider.operators import RayBatchInferOperator, RayRetrainOperator, RayTuneOperator

STEPS = "example_flows.digits_steps"
STORAGE = os.environ.get("EXAMPLE_STORAGE") or str(Path.home() / "ray_results")


@dag(
    schedule=None,
    params={"month": Param("january", enum=["january", "february", "march"])},
    max_active_runs=1,
    default_args={"storage_path": STORAGE},
    tags=["example"],
    render_template_as_native_obj=True,
)
def loop():
    @task
    def make_data(params=None) -> dict[str, str]:
        from example_flows.digits_steps import make_data

        return make_data(f"{STORAGE}/digits-{params['month']}", params["month"])

    data = make_data()
    training = {"train_loop_per_worker": f"{STEPS}:train_loop", "datasets": {"train": data["train"]}}
    tune = RayTuneOperator(
        task_id="tune",
        train={**training, "train_loop_config": {"epochs": 2, "batch_size": 32}},
        param_space={"train_loop_config": {"lr": {"loguniform": [0.003, 0.01]}}},
        metric="loss",
        mode="min",
        num_samples=2,
    )
    retrain = RayRetrainOperator(
        task_id="retrain",
        model="digits",
        registry=f"{STORAGE}/_models",
        train={
            **training,
            "train_loop_config": {
                "epochs": 12,
                "batch_size": 32,
                "lr": "{{ ti.xcom_pull('tune')['best_config']['train_loop_config']['lr'] }}",
            },
            "scaling_config": {"num_workers": 2},
        },
        evaluate={
            "predictor": f"{STEPS}:Predictor",
            "task": "classification",
            "dataset": data["test"],
            "thresholds": {"accuracy": {"min": 0.3}},
            "must_beat": ["accuracy"],
        },
    )
    predict = RayBatchInferOperator(
        task_id="predict",
        predictor=f"{STEPS}:Predictor",
        checkpoint=retrain.output,
        dataset=data["test"],
        output_columns=["label", "prediction"],
    )
    tune >> retrain >> predict


loop()
