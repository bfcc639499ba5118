"""DAGs of the tests: small steps without a framework, their functions in the DAG file itself."""

import json
import os
import signal
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from airflow.sdk import dag

from airflow_provider.operators import RayBatchInferOperator, RayEvaluateOperator, RayTrainOperator

FOLDER = Path(os.environ["TEST_FOLDER"])
GO, CHAIN_GO = FOLDER / "go", FOLDER / "chain-go"


def loop(config):
    """Counts epochs, checkpointing each; waits at `wait_at` for a file, raises at `raise_at`, is killed
    at `die_at`."""
    import ray.train

    epoch = started_at = 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            epoch = started_at = json.loads(Path(folder, "state.json").read_text())["epoch"] + 1
    while epoch < config["epochs"]:
        if epoch == config.get("raise_at"):
            raise ValueError(f"the data of epoch {epoch} is bad")
        if epoch == config.get("die_at"):
            os.kill(os.getpid(), signal.SIGKILL)
        while epoch == config.get("wait_at") and not Path(config["go"]).exists():
            time.sleep(0.2)
        time.sleep(config.get("sleep_s", 0))
        context = ray.train.get_context()
        report = {"epoch": epoch, "started_at": started_at, "workers": context.get_world_size(), "nan": float("nan")}
        ray.train.report(report, checkpoint=save(epoch) if context.get_world_rank() == 0 else None)
        epoch += 1


def save(epoch):
    import ray.train

    folder = tempfile.mkdtemp()
    Path(folder, "state.json").write_text(json.dumps({"epoch": epoch}))
    return ray.train.Checkpoint(folder)


def evaluate(checkpoint, dataset):
    with checkpoint.as_directory() as folder:
        return {"score": json.loads(Path(folder, "state.json").read_text())["epoch"] * 1.0, "rows": dataset.count()}


class Predictor:
    def __init__(self, checkpoint):
        with checkpoint.as_directory() as folder:
            self.add = json.loads(Path(folder, "state.json").read_text())["epoch"]

    def __call__(self, batch):
        return {"prediction": batch["x"] + self.add}


COMMON = {"storage_path": str(FOLDER / "runs")}
RETRYING = {**COMMON, "retries": 2, "retry_delay": timedelta(seconds=1)}
TRAIN = {"train_loop_per_worker": loop, "framework": "python", "scaling_config": {"num_workers": 2}}


@dag(schedule=None, default_args=COMMON)
def chain():
    train = RayTrainOperator(task_id="train", train_loop_config={"epochs": 4, "wait_at": 3, "go": str(CHAIN_GO)}, **TRAIN)
    # synchronous, and its checkpoint by a template
    scored = RayEvaluateOperator(
        task_id="evaluate",
        deferrable=False,
        evaluate=evaluate,
        checkpoint="{{ ti.xcom_pull('train') }}",
        dataset=str(FOLDER / "x.csv"),
        thresholds={"score": {"min": 3}},
    )
    predicted = RayBatchInferOperator(
        task_id="batch_infer", predictor=Predictor, checkpoint=train.output, dataset=str(FOLDER / "x.csv")
    )
    train >> scored >> predicted


@dag(schedule=None, default_args=RETRYING)
def broken():
    once = {"failure_config": {"max_failures": 0}}
    RayTrainOperator(task_id="train", train_loop_config={"epochs": 3, "raise_at": 1}, run_config=once, **TRAIN)


@dag(schedule=None, default_args=RETRYING)
def giving_up():
    policy = {"worker_lost": {"at_most": 1}}
    RayTrainOperator(task_id="train", train_loop_config={"epochs": 3, "die_at": 1}, failure_policy=policy, **TRAIN)


@dag(schedule=None, default_args=RETRYING)
def waiting():
    config = {"epochs": 3, "wait_at": 2, "go": str(GO)}
    RayTrainOperator(task_id="train", train_loop_config=config, limits={"heartbeat_ttl_s": 10}, **TRAIN)


chain()
broken()
giving_up()
waiting()
