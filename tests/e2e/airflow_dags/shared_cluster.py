"""Three steps of a DAG run on one cluster, without tasks that set it up or delete it."""

import os

from airflow.sdk import dag, task

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
