"""Flows as a user writes them, run by `test_prefect.py`: `python -m tests.e2e.prefect_flows FLOW STORAGE [FLOW_RUN_ID]`."""

import asyncio
import inspect
import sys
from typing import Any
from uuid import UUID

from prefect import flow
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.flow_engine import run_flow

from plugin_core import BatchInferSpec, EvaluateSpec, FailureConfig, RunConfig, ScalingConfig, Threshold, TrainSpec
from plugin_core.errors import ClusterUnreachableError
from plugin_core.storage import Location
from plugin_core.supervisor import Event
from prefect_integration import atrain, batch_infer, evaluate, train
from prefect_integration.step import Step
from tests import steps_for_tests as steps


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
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": list(range(10))}), sink)
    file = Location.of(storage).child("rows.parquet")
    file.create(sink.getvalue().to_pybytes())
    return file.uri


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
    """The task fails for want of its cluster while its job runs on, and is tried again."""
    tell, failed = Step._tell, False

    def fail_at_report(step: Step, event: Event) -> None:
        nonlocal failed
        tell(step, event)
        if event.kind == "report" and not failed:
            failed = True
            raise ClusterUnreachableError("the cluster does not answer")

    Step._tell = fail_at_report
    await atrain.with_options(retries=1)(training(storage, sleep_s=2), key="fit")


@flow
def bad_data(storage: str) -> None:
    train.with_options(retries=2)(training(storage, raise_at=1))


@flow
def slow(storage: str) -> None:
    train(training(storage, epochs=6, sleep_s=3), key="fit")


if __name__ == "__main__":
    chosen, storage = globals()[sys.argv[1]], sys.argv[2]
    if len(sys.argv) > 3:
        # what a Prefect worker does when a crashed flow run is scheduled anew
        with get_client(sync_client=True) as client:
            run_flow(chosen, flow_run=client.read_flow_run(UUID(sys.argv[3])), parameters={"storage": storage})
    else:
        result = chosen(storage)
        if inspect.isawaitable(result):
            asyncio.run(result)
