"""Prefect: flows in processes of their own, against a real Prefect server and a real Ray head."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowFilter, FlowRunFilter, LogFilter
from prefect.client.schemas.objects import FlowRun, TaskRun
from prefect.states import AwaitingRetry, Cancelling

from plugin_core import BatchInferResult, EvaluationResult, LocalCluster, TrainResult
from plugin_core.local_head import Head
from plugin_core.rundir import RunDir
from plugin_core.supervisor import run_sync

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def client(prefect_api: str, head: Head) -> Iterator[SyncPrefectClient]:
    with get_client(sync_client=True) as client:
        yield client


class Flows:
    """Starts the flows of `prefect_flows.py` and finds their runs on the server; ends what is left of them."""

    def __init__(self, client: SyncPrefectClient, folder: Path):
        self.client = client
        self.folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, flow: str, *more: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.e2e.prefect_flows", flow, str(self.storage), *more]
        with (self.folder / f"{flow}.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT)
        self._processes.append(process)
        return process

    @property
    def storage(self) -> Path:
        return self.folder / "runs"

    def runs(self, flow: str) -> list[FlowRun]:
        return self.client.read_flow_runs(flow_filter=FlowFilter(name={"any_": [flow.replace("_", "-")]}))

    def tasks(self, flow: str) -> list[TaskRun]:
        (run,) = self.runs(flow)
        found = self.client.read_task_runs(flow_run_filter=FlowRunFilter(id={"any_": [run.id]}))
        return sorted(found, key=lambda task: task.created)

    def rundir(self, flow: str, key: str) -> RunDir:
        (run,) = self.runs(flow)
        (folder,) = self.storage.glob(f"{run.id}--{key}*")
        return RunDir.at(str(folder))

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture(scope="module")
def flows(client: SyncPrefectClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flows]:
    flows = Flows(client, tmp_path_factory.mktemp("flows"))
    yield flows
    flows.close()


def wait_until(true: Callable[[], Any], timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.3)


def eventually(read: Callable[[], Any], expected: Any, timeout_s: float = 30) -> Any:
    """What `read` gives as soon as it is `expected`, or last; task run states reach the server as events, a little late."""
    deadline = time.monotonic() + timeout_s
    while (value := read()) != expected and time.monotonic() < deadline:
        time.sleep(0.5)
    return value


def first_report(flows: Flows, flow: str) -> Callable[[], bool]:
    return lambda: bool(flows.storage.exists() and any(_journal(flows, flow)))


def _journal(flows: Flows, flow: str) -> Iterator[str]:
    for run in flows.runs(flow):
        for file in flows.storage.glob(f"{run.id}--*/.step/journal/*.jsonl"):
            yield from (line for line in file.read_text().splitlines() if '"report"' in line)


@pytest.fixture(scope="module")
def chain(flows: Flows) -> list[TaskRun]:
    """The tasks of one run of the flow `chain`, which failed once and was retried."""
    assert flows.start("chain").wait(timeout=240) == 0, (flows.folder / "chain.log").read_text()[-5000:]
    names = [["Completed"] * 4]
    eventually(lambda: [[task.state_name for task in flows.tasks("chain")]], names)
    return flows.tasks("chain")


def test_a_chain_of_tasks_completes_and_each_result_is_typed(chain: list[TaskRun]) -> None:
    results = [task.state.result() for task in chain]
    assert [type(result) for result in results] == [TrainResult, TrainResult, EvaluationResult, BatchInferResult]
    train, _, evaluation, predictions = results
    assert train.metrics["epoch"] == 2
    assert evaluation.passed
    assert evaluation.metrics == {"epoch": 2, "rows": 10}
    assert predictions.rows == 10
    assert all(len(result.model_dump_json()) <= 2048 for result in results)


def test_a_flow_retry_returns_the_stored_result_without_a_new_job(flows: Flows, chain: list[TaskRun]) -> None:
    (run,) = flows.runs("chain")
    first, second = [task for task in chain if task.name.startswith("train")]
    assert run.run_count == 2
    assert first.id != second.id
    assert first.state.result() == second.state.result()
    assert flows.rundir("chain", "train").receipts() == [1]


def test_the_reports_are_in_the_task_runs_log_on_the_server(flows: Flows, chain: list[TaskRun]) -> None:
    log = LogFilter(task_run_id={"any_": [chain[0].id]})
    wait_until(lambda: any(line.message.startswith("report 3:") for line in flows.client.read_logs(log)), timeout_s=30)
    messages = [line.message for line in flows.client.read_logs(log)]
    assert any(message.startswith("report 1: epoch=0") for message in messages)
    assert f"run directory: {flows.rundir('chain', 'train').uri}" in messages


def test_a_task_retry_attaches_to_the_live_job_in_an_async_flow_too(flows: Flows) -> None:
    assert flows.start("fails_once").wait(timeout=180) == 0
    eventually(lambda: flows.tasks("fails_once")[0].state_name, "Completed")
    (task,) = flows.tasks("fails_once")
    assert task.run_count == 2
    assert task.state.result().metrics["started_at"] == 0
    assert flows.rundir("fails_once", "fit").receipts() == [1]


def test_an_exception_of_the_users_is_not_retried_and_its_message_is_in_the_state(flows: Flows) -> None:
    assert flows.start("bad_data").wait(timeout=180) == 1
    eventually(lambda: flows.tasks("bad_data")[0].state_name, "Failed")
    (task,) = flows.tasks("bad_data")
    assert "the data of epoch 1 is bad" in task.state.message
    assert task.run_count == 1
    assert flows.rundir("bad_data", "train").receipts() == [1]


def test_a_flow_process_that_is_terminated_leaves_its_job_alone_and_the_next_one_attaches(flows: Flows) -> None:
    process = flows.start("slow")
    wait_until(first_report(flows, "slow"))
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) != 0
    (run,) = flows.runs("slow")
    flows.client.set_flow_run_state(run.id, AwaitingRetry(), force=True)
    assert flows.start("slow", str(run.id)).wait(timeout=180) == 0, (flows.folder / "slow.log").read_text()[-5000:]
    rundir = flows.rundir("slow", "fit")
    assert rundir.receipts() == [1]
    assert rundir.end(1).outcome == "succeeded"
    assert rundir.result().metrics["started_at"] == 0


@pytest.mark.parametrize(
    "how", [pytest.param("an interrupt from the keyboard", marks=pytest.mark.slow), "a cancel in Prefect"]
)
def test_a_cancel_stops_the_job(flows: Flows, tmp_path: Path, how: str) -> None:
    mine = Flows(flows.client, tmp_path)
    process = mine.start("slow")
    wait_until(lambda: any('"report"' in file.read_text() for file in mine.storage.glob("*/.step/journal/*.jsonl")))
    (folder,) = mine.storage.iterdir()
    if how == "a cancel in Prefect":
        # what a runner does: the flow run is Cancelling when its process gets a SIGTERM
        mine.client.set_flow_run_state(UUID(folder.name.split("--")[0]), Cancelling(), force=True)
        process.send_signal(signal.SIGTERM)
    else:
        process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) != 0
    rundir = RunDir.at(str(folder))
    assert rundir.intent().cancel_through == 1
    assert run_sync(job_status(rundir)) == "STOPPED"


async def job_status(rundir: RunDir) -> str:
    async with await LocalCluster().connect() as cluster:
        job = await cluster.job(rundir.receipt(1).submission_id)
        return job.status
