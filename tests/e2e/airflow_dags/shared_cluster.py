"""Three steps of a DAG run on one cluster, without tasks that set it up or delete it; and with them."""

import os

from airflow.sdk import DAG, dag, task

from airflow_provider.operators import EndRayClusterOperator, StartRayClusterOperator

STORAGE = os.environ["TEST_FOLDER"] + "/runs"


@dag(schedule=None, default_args={"ray_conn_id": "ray_shared", "storage_path": STORAGE})
def shared_cluster():
    @task.ray
    def prepare(numbers):
        return {"numbers": numbers, "doubled": [2 * number for number in numbers]}

    @task.ray
    def train(data):
        return sum(data["doubled"])

    @task.ray
    def check(total):
        assert total == 12, total

    check(train(prepare([1, 2, 3])))


shared_cluster()


def double(number):
    return 2 * number


with DAG("explicit_cluster", schedule=None, default_args={"ray_conn_id": "ray_shared"}):
    start = StartRayClusterOperator(task_id="start").as_setup()
    step = task.ray(double, storage_path=STORAGE)(21)
    start >> step >> EndRayClusterOperator(task_id="end").as_teardown(setups=start)
