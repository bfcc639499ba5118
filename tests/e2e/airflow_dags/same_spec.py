"""The spec file that every engine runs; the DAG run says where its run is kept."""

from pathlib import Path

from airflow.sdk import dag

from airflow_provider.operators import RayTrainOperator


@dag(schedule=None)
def same_spec():
    RayTrainOperator(
        task_id="train",
        spec=str(Path(__file__).parents[1] / "same_spec.yaml"),
        storage_path="{{ dag_run.conf['storage'] }}",
    )


same_spec()
