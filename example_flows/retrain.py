"""Scheduled retraining: warm-started from the champion, a gate that keeps a worse model out, and never two at once.

    prefect server start
    prefect work-pool create training --type process
    prefect --no-prompt deploy --all --prefect-file example_flows/prefect.yaml
    prefect worker start --pool training

The champion is a Prefect variable, `digits_champion`: its checkpoint and accuracy. `example_flows/prefect.yaml` starts the
flow by cron, by interval, and by an event that announces a new dataset; its concurrency limit keeps the runs apart.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: let it find its neighbours
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from prefect import flow, suspend_flow_run, task
from prefect.cache_policies import RUN_ID
from prefect.transactions import Transaction, transaction
from prefect.variables import Variable

from example_flows import digits_steps as steps
from plugin_core import EvaluateSpec, RunConfig, ScalingConfig, Threshold, TrainSpec
from plugin_core.specs.results import EvaluationResult
from plugin_core.storage.location import Location, default_storage_path
from prefect_integration import cancel_ray_jobs, evaluate, report_ray_jobs, train

CHAMPION, CANDIDATE = "digits_champion", "digits_candidate"

make_data = task(steps.make_data)


class NotGoodEnoughError(Exception):
    """The candidate did not pass the gate; the champion stays."""


@task(cache_policy=RUN_ID, persist_result=True)
def read_champion() -> dict[str, Any]:
    """The champion as it was when this flow run began: all retries of the flow run warm-start from the same one."""
    champion: dict[str, Any] = Variable.get(CHAMPION, default={})
    return champion


@task
def publish(checkpoint: str) -> None:
    """Put the candidate where it can be tried out. It becomes the champion when the transaction commits, and not before:
    a flow that is killed in between leaves the champion unchanged."""
    Variable.set(CANDIDATE, {"checkpoint": checkpoint}, overwrite=True)


@publish.on_rollback
def withdraw(transaction: Transaction) -> None:
    Variable.unset(CANDIDATE)


@task
def promote(judged: EvaluationResult) -> None:
    assert judged.checkpoint is not None
    champion = {"checkpoint": judged.checkpoint.uri, "accuracy": judged.metrics["accuracy"]}
    Variable.set(CHAMPION, champion, overwrite=True)
    Variable.unset(CANDIDATE)


@flow(on_cancellation=[cancel_ray_jobs], on_crashed=[report_ray_jobs])
def retrain(storage: str = "", min_accuracy: float = 0.9, epochs: int = 6, approval: bool = False) -> dict[str, Any]:
    """Continue training from the champion, publish, evaluate, and promote or withdraw. Returns the resulting champion.

    `storage`: where runs and data are kept (default: `RAY_STORAGE`, then ~/ray_results). `approval`: a person must
    approve between the gate and the promotion; until then the flow run is suspended and takes no slot.
    """
    storage = storage or default_storage_path()
    run_config = RunConfig(storage_path=storage)
    champion = read_champion()
    data = make_data(Location.of(storage).child("digits-data").uri)
    trained = train(
        TrainSpec(
            train_loop_per_worker=steps.train_loop,
            train_loop_config={"epochs": epochs, "lr": 0.003, "batch_size": 32},
            scaling_config=ScalingConfig(num_workers=2),
            datasets={"train": data["train"]},
            resume_from=champion.get("checkpoint"),
            run_config=run_config,
        ),
        key="train",
    )
    with transaction():
        publish(trained.checkpoint.uri)
        judged = evaluate(
            EvaluateSpec(
                evaluate=steps.evaluate,
                checkpoint=trained.checkpoint,
                dataset=data["test"],
                thresholds={"accuracy": Threshold(min=max(min_accuracy, champion.get("accuracy", 0.0) - 0.02))},
                run_config=run_config,
            ),
            key="evaluate",
        )
        if not judged.passed:
            raise NotGoodEnoughError(judged.why)
    if approval:
        # on resume the flow starts over, and the steps that are done return their stored results
        suspend_flow_run(timeout=7 * 24 * 3600, key="approval")
    promote(judged)
    return Variable.get(CHAMPION)


if __name__ == "__main__":
    print(retrain(*sys.argv[1:2]))
