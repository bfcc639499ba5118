"""New data starts a retraining, warm-started from the champion; a better model becomes champion, with an asset event.

`new_digits` (run by hand, or by whatever brings data) announces the data; `retrain_digits` runs on that event: continue
training from the champion's checkpoint, evaluate, and promote or keep. Serving would be a DAG scheduled on `champion`.

The functions are those of `example_flows/digits_steps.py`: the repository's root has to be on PYTHONPATH.
"""

import os
from pathlib import Path

from airflow.sdk import Asset, dag, task

from airflow_provider.operators import RayEvaluateOperator, RayTrainOperator

STEPS = "example_flows.digits_steps"
STORAGE = os.environ.get("EXAMPLE_STORAGE") or str(Path.home() / "ray_results")
DATA = Asset("digits_data")
CHAMPION = Asset("digits_champion")


@dag(schedule=None, tags=["example"])
def new_digits():
    @task(outlets=[DATA])
    def bring(outlet_events=None):
        from example_flows.digits_steps import make_data

        outlet_events[DATA].extra = make_data(f"{STORAGE}/digits-data")

    bring()


@dag(schedule=[DATA], default_args={"storage_path": STORAGE}, tags=["example"], render_template_as_native_obj=True)
def retrain_digits():
    @task(inlets=[CHAMPION], multiple_outputs=True)
    def given(triggering_asset_events=None, inlet_events=None):
        """The data of the event that started this run, and the current champion, if any."""
        champions = inlet_events[CHAMPION]
        champion = champions[-1].extra if len(champions) else {"checkpoint": None, "metrics": {"accuracy": 0.0}}
        return {**triggering_asset_events[DATA][-1].extra, "champion": champion}

    data = given()
    train = RayTrainOperator(
        task_id="train",
        train_loop_per_worker=f"{STEPS}:train_loop",
        train_loop_config={"epochs": "{{ 4 if ti.xcom_pull('given')['champion']['checkpoint'] else 12 }}"}
        | {"lr": 3e-3, "batch_size": 64},
        scaling_config={"num_workers": 2},
        datasets={"train": data["train"]},
        resume_from="{{ ti.xcom_pull('given')['champion']['checkpoint'] }}",
    )
    evaluation = RayEvaluateOperator(
        task_id="evaluate",
        evaluate=f"{STEPS}:evaluate",
        checkpoint=train.output,
        dataset=data["test"],
        thresholds={"accuracy": {"min": 0.9}},
    )

    @task.branch
    def decide(evaluated, data):
        better = evaluated["metrics"]["accuracy"] >= data["champion"]["metrics"]["accuracy"]
        return "promote" if evaluated["passed"] and better else "keep"

    @task(outlets=[CHAMPION])
    def promote(evaluated, outlet_events=None):
        outlet_events[CHAMPION].extra = {"checkpoint": evaluated["checkpoint"], "metrics": evaluated["metrics"]}

    @task
    def keep():
        print("the champion stays")

    decide(evaluation.output, data) >> [promote(evaluation.output), keep()]


new_digits()
retrain_digits()
