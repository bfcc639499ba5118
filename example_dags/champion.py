"""Digits: data → train → evaluate → promote or keep. Another DAG predicts with the champion. Tracked in MLflow.

The functions are those of `example_flows/digits_steps.py`: the repository's root has to be on PYTHONPATH.
"""

import os
from pathlib import Path

from airflow.sdk import Asset, dag, task
from airflow.sdk.exceptions import AirflowSkipException

from airflow_provider.operators import PromoteModelOperator, RayBatchInferOperator, RayEvaluateOperator, RayTrainOperator

STEPS = "example_flows.digits_steps"
STORAGE = os.environ.get("EXAMPLE_STORAGE") or str(Path.home() / "ray_results")
MLFLOW = os.environ.get("MLFLOW_TRACKING_URI") or "http://127.0.0.1:5000"
REGISTRY = f"mlflow:{MLFLOW}"
TRACKING = {"type": "mlflow", "tracking_uri": MLFLOW, "experiment_name": "digits"}
CHAMPION = Asset("digits_champion_promoted")
DEFAULTS = {"storage_path": STORAGE, "tracking": TRACKING, "retries": 1}


@task(multiple_outputs=True)
def make_data() -> dict[str, str]:
    from example_flows.digits_steps import make_data

    return make_data(f"{STORAGE}/digits-data")  # {"train": a file, "test": a file}


@dag(schedule=None, default_args=DEFAULTS, tags=["example"])  # or "@weekly"
def train_champion():
    data = make_data()
    train = RayTrainOperator(
        task_id="train",
        train_loop_per_worker=f"{STEPS}:train_loop",
        train_loop_config={"epochs": 12, "lr": 0.003, "batch_size": 64},
        scaling_config={"num_workers": 2},
        datasets={"train": data["train"]},
    )
    evaluate = RayEvaluateOperator(
        task_id="evaluate",
        evaluate=f"{STEPS}:evaluate",
        checkpoint=train.output,
        dataset=data["test"],
        thresholds={"accuracy": {"min": 0.9}},
    )

    @task.branch
    def decide(evaluated):
        return "promote" if evaluated["passed"] else "keep"

    promote = PromoteModelOperator(
        task_id="promote", result=evaluate.output, name="digits", registry=REGISTRY, outlets=[CHAMPION]
    )

    @task
    def keep(evaluated):
        return evaluated["failed"]  # why the champion stays

    decide(evaluate.output) >> [promote, keep(evaluate.output)]


@dag(schedule=[CHAMPION], default_args=DEFAULTS, tags=["example"])  # or "@daily"
def predict_with_champion():
    @task
    def champion() -> str:
        from plugin_core import get_model

        model = get_model("digits", registry=REGISTRY)
        if model is None:
            raise AirflowSkipException("nothing was promoted yet")
        print(f"version {model.version} of {model.name}: {model.metrics}")
        return model.checkpoint

    RayBatchInferOperator(
        task_id="predict",
        predictor=f"{STEPS}:Predictor",
        checkpoint=champion(),
        dataset=make_data()["test"],
        output_columns=["label", "prediction"],
    )


train_champion()
predict_with_champion()
