"""The same as a DAG; `airflow_run.py` runs it. SMOKE names an empty folder."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import steps
from airflow.sdk import dag, task

from airflow_provider.operators import RayEvaluateOperator, RayTrainOperator

HERE = os.environ["SMOKE"]


@dag(schedule=None)
def smoke():
    fields = steps.training(f"{HERE}/runs", f"{HERE}/killed")
    trained = RayTrainOperator(task_id="train", ray_conn_id=None, **fields)
    evaluated = RayEvaluateOperator(
        task_id="evaluate",
        ray_conn_id=None,
        evaluate="steps:evaluate",
        checkpoint=trained.output,
        run_config={"storage_path": f"{HERE}/runs"},
    )
    task(steps.check)(trained.output, evaluated.output)


@dag(schedule=None)
def endless():
    """For a person to mark it failed."""
    fields = steps.training(f"{HERE}/endless", f"{HERE}/killed")
    RayTrainOperator(task_id="train", ray_conn_id=None, **{**fields, "train_loop_config": {"steps": 10**6, "killed": HERE}})


smoke()
endless()
