"""What the fault tests do to a task: one loop that records its steps and waits for a file, in every kind of task.

The folder of a scenario comes with the DAG run: `trail.jsonl` in it gets every step, `go` lets the loop pass its wait.
"""

import json
import os
import signal
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from airflow.sdk import Asset, AssetAlias, dag, task

from airflow_provider import common
from airflow_provider.operators import RayTrainOperator

COMMON = {
    "storage_path": os.environ["TEST_FOLDER"] + "/runs",
    "framework": "python",
    "scaling_config": {"num_workers": 1},
    "limits": {"heartbeat_ttl_s": 10},
}
RETRYING = {**COMMON, "retries": 2, "retry_delay": timedelta(seconds=1)}
CONFIG = {"steps": 6, "hold_at": 3, "folder": "{{ dag_run.conf['folder'] }}"}


def loop(config):
    """Six steps, each reported with a checkpoint; before `hold_at` it waits for the file."""
    import ray.train

    folder, first = Path(config["folder"]), 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as saved:
            first = json.loads(Path(saved, "state.json").read_text())["step"] + 1
    for step in range(first, config["steps"]):
        with Path(folder, config.get("trail", "trail.jsonl")).open("a") as trail:
            trail.write(json.dumps({"rank": 0, "pid": os.getpid(), "step": step, "first": first}) + "\n")
        if step == config.get("raise_at") and not Path(folder, "mended").exists():
            raise ValueError("the data is bad")
        while step == config.get("hold_at") and not Path(folder, "go").exists():
            time.sleep(0.1)
        saved = tempfile.mkdtemp()
        Path(saved, "state.json").write_text(json.dumps({"step": step}))
        ray.train.report({"step": step, "first": first}, checkpoint=ray.train.Checkpoint(saved))


class Noting(RayTrainOperator):
    """Writes down the process that executes the task, so that a test can end it; and may end itself after its submit."""

    def execute(self, context):
        common.HEALTH_TIMEOUT_S = 60.0  # a busy API server is asked all the same
        self.folder = Path(context["dag_run"].conf["folder"])
        (self.folder / "task.pid").write_text(str(os.getpid()))
        return super().execute(context)

    def _show_job(self, ti, rundir, place):
        if (self.folder / "die").exists() and ti.try_number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        super()._show_job(ti, rundir, place)


def train(**fields):
    return Noting(**{"task_id": "train", "train_loop_per_worker": loop, "train_loop_config": CONFIG, **fields})


@dag(schedule=None, default_args=RETRYING)
def deferred():
    train()


@dag(schedule=None, default_args=RETRYING)
def synchronous():
    train(deferrable=False)


@dag(schedule=None, default_args=COMMON)
def last_try():
    train(deferrable=False)


@dag(schedule=None, default_args=COMMON, dagrun_timeout=timedelta(days=1))
def timed():
    train()


@dag(schedule=None, default_args=RETRYING)
def limited():
    train(limits={"heartbeat_ttl_s": 10, "timeout_s": 25})


@dag(schedule=None, default_args=RETRYING)
def through_a_proxy():
    train(ray_conn_id="proxied")


@dag(schedule=None, default_args=RETRYING)
def mended():
    train(train_loop_config={**CONFIG, "hold_at": None, "raise_at": 2})


@dag(schedule=None, default_args=COMMON)
def many():
    configs = [{**CONFIG, "hold_at": 1, "trail": f"trail-{number}.jsonl"} for number in range(8)]
    RayTrainOperator.partial(task_id="train", train_loop_per_worker=loop).expand(train_loop_config=configs)


def reading(config):
    """Counts its rows, waits for the file, and writes down when it began to and when it was done."""
    import ray.train

    rank = ray.train.get_context().get_world_rank()

    def note(**entry):
        with Path(config["folder"], config["trail"]).open("a") as trail:
            trail.write(json.dumps({"rank": rank, "pid": os.getpid(), "time": time.time(), **entry}) + "\n")

    note(step=0, began=True)
    rows = sum(len(batch["x"]) for batch in ray.train.get_dataset_shard("train").iter_batches(batch_size=8))
    while not Path(config["folder"], "go").exists():
        time.sleep(0.1)
    note(step=1, began=False)
    ray.train.report({"rows": rows})


@dag(schedule=None, default_args=COMMON)
def many_with_data():
    """Two workers and their data are 3 CPUs."""
    folder = "{{ dag_run.conf['folder'] }}"
    RayTrainOperator.partial(
        task_id="train",
        train_loop_per_worker=reading,
        scaling_config={"num_workers": 2},
        datasets={"train": folder + "/x.csv"},
    ).expand(train_loop_config=[{"folder": folder, "trail": f"run-{number}.jsonl"} for number in range(8)])


MODEL = Asset("scenarios_model")


@dag(schedule=None, default_args=COMMON)
def produces():
    @task.ray_train(outlets=[MODEL, AssetAlias("scenarios_runs")])
    def fit(config):
        loop(config)

    fit({"steps": 2, "folder": "{{ dag_run.conf['folder'] }}"})


@dag(schedule=[MODEL])
def consumes():
    @task
    def told(triggering_asset_events=None):
        (event,) = triggering_asset_events[MODEL]
        return event.extra

    told()


@dag(schedule=[AssetAlias("scenarios_runs")])
def consumes_alias():
    @task
    def told(triggering_asset_events=None):
        return [event.extra["checkpoint"]["uri"] for events in triggering_asset_events.values() for event in events]

    told()


@dag(schedule=None, default_args=RETRYING)
def bad_input():
    class Unpicklable:
        def __reduce__(self):
            raise TypeError("an open connection")

    connection = Unpicklable()

    @task.ray_train
    def closes_over(config):
        print(connection)

    closes_over()
    train(task_id="no_connection", ray_conn_id="nowhere")
    train(task_id="wrong_type", ray_conn_id="a_web_server")
    train(task_id="wrong_token", ray_conn_id="wrong_token")
    train(task_id="nonsense", scaling_config={"num_workers": "{{ 'many' }}"})


for made in (deferred, synchronous, last_try, timed, limited, through_a_proxy, mended, many, many_with_data):
    made()
for made in (produces, consumes, consumes_alias, bad_input):
    made()
