"""Each framework's example (`example_flows/frameworks`) as a task, one after the other: the same specs as in Prefect.

The repository's root has to be on PYTHONPATH.
"""

import os
from pathlib import Path

from airflow.sdk import chain, dag

from airflow_provider.operators import RayTrainOperator
from example_flows.frameworks import example, installed

STORAGE = os.environ.get("EXAMPLE_STORAGE") or str(Path.home() / "ray_results")


@dag(schedule=None, default_args={"storage_path": STORAGE}, tags=["example"])
def frameworks():
    # "all_done": if one framework fails, the others still run
    chain(*(RayTrainOperator(task_id=name, spec=example(name).SPEC, trigger_rule="all_done") for name in installed()))


frameworks()
