"""Flows as a user writes them: `python -m tests.e2e.prefect_flows FLOW STORAGE [FLOW_RUN_ID [WHAT]]`."""

import asyncio
import inspect
import json
import sys
import threading
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import flow, suspend_flow_run
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.flow_engine import run_flow
from pydantic import SecretStr

from devtools import steps
from example_flows.tables import write_tables
from plugin_core import (
    BatchInferSpec,
    EvaluateSpec,
    FailureConfig,
    KubeRayCluster,
    KubeRaySettings,
    LocalCluster,
    RayJobSpec,
    RunConfig,
    ScalingConfig,
    Threshold,
    TrainSpec,
)
from plugin_core.errors import ClusterUnreachableError
from plugin_core.storage.location import Location
from plugin_core.supervisor.supervisor import Supervisor
from prefect_integration import (
    RayCluster,
    RayTrainJob,
    atrain,
    batch_infer,
    cancel_ray_jobs,
    end_cluster,
    evaluate,
    ray_job,
    ray_task,
    report_ray_jobs,
    start_cluster,
    train,
)
from tests.support.data_trainings import DataTrainings


def training(storage: str, **config: Any) -> TrainSpec:
    return TrainSpec(
        framework="python",
        train_loop_per_worker=steps.counting_loop,
        train_loop_config={"epochs": 3, **config},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=storage, failure_config=FailureConfig(max_failures=0)),
    )


def rows(storage: str) -> str:
    import pyarrow as pa

    return write_tables(storage, {"rows": pa.table({"x": list(range(10))})})["rows"]


@flow(retries=1)
def chain(storage: str) -> None:
    """Fails once after the training, so that its retry calls the training again."""
    trained = train(training(storage))
    if FlowRunContext.get().flow_run.run_count == 1:
        raise RuntimeError("the flow fails once")
    data, run_config = rows(storage), RunConfig(storage_path=storage)
    judged = evaluate(
        EvaluateSpec(
            evaluate=steps.evaluate,
            checkpoint=trained.checkpoint,
            dataset=data,
            thresholds={"epoch": Threshold(min=2)},
            run_config=run_config,
        )
    )
    assert judged.passed
    batch_infer(
        BatchInferSpec(predictor=steps.Predictor, checkpoint=trained.checkpoint, dataset=data, run_config=run_config)
    )


@flow
async def fails_once(storage: str) -> None:
    """The task fails because its cluster is missing while its job runs on, and is tried again."""
    step, failed = Supervisor.step, False

    async def fail_once(supervisor: Supervisor) -> Any:
        nonlocal failed
        if supervisor.attempt and not failed:
            failed = True
            raise ClusterUnreachableError("the cluster does not answer")
        return await step(supervisor)

    Supervisor.step = fail_once
    await atrain.with_options(retries=1)(training(storage, sleep_s=2), key="fit")


@flow
def bad_data(storage: str) -> None:
    train.with_options(retries=2)(training(storage, raise_at=1))


@flow
def giving_up(storage: str) -> None:
    spec = training(storage).model_copy(
        update={"train_loop_per_worker": steps.dying_loop, "failure_policy": {"worker_lost": {"at_most": 1}}}
    )
    train.with_options(retries=2)(spec)


@flow
def hanging(storage: str) -> None:
    """Rank 1 falls asleep once; the workers are restarted."""
    from tests.support.standstills import training

    folder = Path(storage, "hanging")
    folder.mkdir(parents=True)
    spec = training(folder, folder / "trail.jsonl", "asleep")
    # on a busy machine it may seem to hang at other times too
    patient = spec.run_config.model_copy(update={"failure_config": FailureConfig(max_failures=-1)})
    train(spec.model_copy(update={"run_config": patient}))


def long(storage: str, **config: Any) -> TrainSpec:
    """Trains far longer than a test: a cancel ends it, or the file `go` in the storage."""
    loop = {"epochs": 1000, "sleep_s": 1, "until": f"{storage}/go", **config}
    return training(storage, **loop).model_copy(update={"scaling_config": ScalingConfig(num_workers=1)})


@flow
def direct(storage: str) -> None:
    train(long(storage), key="fit")


@flow
def submitted(storage: str) -> None:
    train.submit(long(storage), key="fit").result()


@flow
def mapped(storage: str) -> None:
    train.map([long(storage, number=number) for number in (1, 2)]).result()


@flow
def eight_with_data(storage: str) -> None:
    trainings = DataTrainings(Path(storage))
    results = train.map([trainings.spec(f"run-{number}") for number in range(8)]).result()
    assert [result.metrics["rows"] for result in results] == [32] * 8


@flow
async def awaited(storage: str) -> None:
    await atrain(long(storage), key="fit")


@flow
async def submitted_by_async(storage: str) -> None:
    await asyncio.wrap_future(train.submit(long(storage), key="fit").wrapped_future)


@flow
def inner(storage: str) -> None:
    train(long(storage), key="fit")


@flow
def in_a_subflow(storage: str) -> None:
    inner(storage)


@flow(on_cancellation=[cancel_ray_jobs], on_crashed=[report_ray_jobs])
def hooked(storage: str) -> None:
    train(long(storage), key="fit")


@flow(retries=1)
def parent_fails_once(storage: str) -> None:
    """The subflow fails with its parent, and gets another flow run id when the parent is tried again."""
    fails_with_its_parent(storage)


@flow
def fails_with_its_parent(storage: str) -> None:
    trained = train(training(storage), key="fit")
    marker = Location.of(storage).child("failed-once")
    if marker.create(trained.run.uri.encode()):
        raise RuntimeError("the subflow fails once")


@flow
def suspended(storage: str) -> None:
    train(training(storage), key="fit")
    suspend_flow_run(timeout=600, key="word")
    train(training(storage), key="fit2")


@flow
def two_under_one_key(storage: str) -> None:
    train(training(storage), key="fit")
    train.with_options(retries=2)(training(storage, epochs=2), key="fit")


@flow
def takes(storage: str, what: str = "") -> None:
    """Bad input of several kinds, each with retries that must not be spent."""
    spec, more = training(storage), {}
    if what == "no spec":
        spec = 17
    elif what == "another kind":
        spec = EvaluateSpec(evaluate=steps.evaluate, checkpoint="/nowhere")
    elif what == "an address":
        more = {"cluster": "http://127.0.0.1:8265"}
    elif what == "wrong token":
        more = {"cluster": RayCluster.load("prod").model_copy(update={"token": SecretStr("wrong")})}
    elif what == "no pickle":
        lock = threading.Lock()
        spec = spec.model_copy(update={"train_loop_per_worker": lambda config: lock.acquire()})
    train.with_options(retries=2)(spec, **more)


@flow
def on_a_block(storage: str) -> None:
    """A cluster and a job by their blocks' names."""
    trained = train(training(storage), cluster=RayCluster.load("prod"), key="fit")
    run = RayTrainJob.load("job").trigger()
    run.wait_for_completion()
    assert run.fetch_result().metrics["epoch"] == trained.metrics["epoch"] == 2
    assert run.cancel() == "finished"


def double(numbers: list[int]) -> list[int]:
    return [2 * number for number in numbers]


@flow(retries=1)
def jobs(storage: str) -> None:
    """A function and a command; fails once after the first, so that its retry calls it again."""
    config = RunConfig(storage_path=storage)
    twice = ray_task(double, key="double", run_config=config)([1, 2])
    if FlowRunContext.get().flow_run.run_count == 1:
        raise RuntimeError("the flow fails once")
    ray_job(RayJobSpec(command=["echo", str(sum(twice))], run_config=config), key="say")


def on_kubernetes(cluster: str, **fields: Any) -> KubeRayCluster:
    """`cluster`: where the fake of Kubernetes is, and the Ray behind it, as JSON."""
    return KubeRayCluster(**json.loads(cluster), settings=KubeRaySettings(image="registry/work:1"), **fields)


@flow
def shared(storage: str, cluster: str) -> None:
    """Two steps on one cluster, which the end of the flow run deletes."""
    place = on_kubernetes(cluster, share="workflow")
    on_it = {"cluster": place, "run_config": RunConfig(storage_path=storage)}
    first = ray_task(double, key="first", **on_it)([1])
    assert ray_task(double, key="second", **on_it)(first) == [4]


@flow
def shared_by_tasks(storage: str, cluster: str) -> None:
    """The same, with a task that starts the cluster and one that deletes it."""
    place = on_kubernetes(cluster, share="workflow")
    start_cluster(place)
    assert ray_task(double, key="first", cluster=place, run_config=RunConfig(storage_path=storage))([1]) == [2]
    end_cluster(place)


@flow
def queued_and_falling_back(storage: str, cluster: str) -> None:
    """One step waits in a queue of Kueue; the next one moves on from a cluster that nobody answers for."""
    place = on_kubernetes(cluster, queue="gpus")
    config = RunConfig(storage_path=storage)
    assert ray_task(double, key="queued", cluster=place, run_config=config)([1]) == [2]
    nobody = KubeRayCluster("nobody", kubeconfig=place.kubeconfig, address="http://127.0.0.1:9", start_timeout_s=3.0)
    assert ray_task(double, key="moved", cluster=[nobody, LocalCluster()], run_config=config)([2]) == [4]


SERVED = (direct, submitted, mapped, awaited, in_a_subflow, hooked, suspended)

if __name__ == "__main__":
    chosen, storage = globals()[sys.argv[1]], sys.argv[2]
    if sys.argv[3:] and sys.argv[3]:
        # what a Prefect worker does when a crashed flow run is scheduled anew
        with get_client(sync_client=True) as client:
            flow_run = client.read_flow_run(UUID(sys.argv[3]))
        result = run_flow(chosen, flow_run=flow_run, parameters={"storage": storage})
    else:
        result = chosen(storage, *sys.argv[4:])
    if inspect.isawaitable(result):
        asyncio.run(result)
