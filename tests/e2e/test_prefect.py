"""Prefect: flows in processes of their own, against a real Prefect server and a real Ray head."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.blocks.core import Block
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowFilter, FlowRunFilter, LogFilter
from prefect.client.schemas.objects import FlowRun, TaskRun
from prefect.events.schemas.events import ReceivedEvent
from pydantic import SecretStr

from devtools.chaos import nothing_left
from plugin_core import BatchInferResult, EvaluationResult, TrainResult
from plugin_core.clusters.local_head import Head
from plugin_core.runs.directory import RunDir
from prefect_integration import RayCluster, RayTrainJob
from tests.e2e.prefect_flows import training
from tests.e2e.prefect_runs import ROOT, Run, wait_until
from tests.support.data_trainings import WAITING, DataTrainings

slow = pytest.mark.slow


class Flows:
    """Starts the flows of `prefect_flows.py`, finds their runs on the server, and ends those still running."""

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

    def states(self, flow: str) -> list[str]:
        return [str(task.state_name) for task in self.tasks(flow)]

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


def eventually(read: Callable[[], Any], expected: Any) -> None:
    """Until `read` gives what is `expected`: task run states reach the server as events, a little late."""
    wait_until(lambda: read() == expected, str(expected))


@pytest.fixture(scope="module")
def chain(flows: Flows) -> list[TaskRun]:
    """The tasks of one run of the flow `chain`, which failed once and was retried."""
    assert flows.start("chain").wait(timeout=600) == 0, (flows.folder / "chain.log").read_text()[-5000:]
    names = ["Completed", "Cached", "Completed", "Completed"]  # the second is the first one's, when the flow is retried
    eventually(lambda: flows.states("chain"), names)
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
    wait_until(lambda: any(line.message.startswith("report 3:") for line in flows.client.read_logs(log)))
    messages = [line.message for line in flows.client.read_logs(log)]
    assert any(message.startswith("report 1: epoch=0") for message in messages)
    assert any(message.endswith(f"; run directory: {flows.rundir('chain', 'train').uri}") for message in messages)
    assert any(message.startswith("trained: 3 reports; last epoch=2") for message in messages)


@pytest.mark.slow
def test_a_task_retry_attaches_to_the_live_job_in_an_async_flow_too(flows: Flows) -> None:
    assert flows.start("fails_once").wait(timeout=600) == 0
    eventually(lambda: flows.states("fails_once"), ["Completed"])
    (task,) = flows.tasks("fails_once")
    assert task.run_count == 2
    assert task.state.result().metrics["started_at"] == 0
    assert flows.rundir("fails_once", "fit").receipts() == [1]


def message_of_the_only_try(flows: Flows, name: str) -> str:
    """Of a training that fails although its task may be tried again."""
    assert flows.start(name).wait(timeout=600) == 1
    eventually(lambda: flows.states(name), ["Failed"])
    (task,) = flows.tasks(name)
    assert task.run_count == 1
    assert flows.rundir(name, "train").receipts() == [1]
    return str(task.state.message)


@slow
def test_a_users_exception_is_not_retried_and_its_message_is_in_the_state(flows: Flows) -> None:
    assert "the data of epoch 1 is bad" in message_of_the_only_try(flows, "bad_data")


@slow
def test_a_policy_that_gives_up_leaves_nothing_to_prefects_retries(flows: Flows) -> None:
    message = message_of_the_only_try(flows, "giving_up")
    assert "failure_policy.worker_lost.at_most allows no more than 1 restarts" in message


@slow
def test_a_training_that_stands_still_says_so_in_its_tasks_log(flows: Flows) -> None:
    assert flows.start("hanging").wait(timeout=600) == 0, (flows.folder / "hanging.log").read_text()[-5000:]
    eventually(lambda: flows.states("hanging"), ["Completed"])
    log = LogFilter(task_run_id={"any_": [flows.tasks("hanging")[0].id]})

    def told() -> list[str]:
        return [line.message for line in flows.client.read_logs(log) if "the training hangs: no report for" in line.message]

    wait_until(lambda: any("rank 1 is in asleep (standstills.py:" in line for line in told()), "the rank that hangs")


@slow
def test_eight_mapped_trainings_with_data_take_turns_on_the_head(flows: Flows) -> None:
    flows.storage.mkdir(exist_ok=True)
    assert flows.start("eight_with_data").wait(timeout=900) == 0
    eventually(lambda: flows.states("eight_with_data"), ["Completed"] * 8)
    DataTrainings(flows.storage).check_one_at_a_time([f"run-{number}" for number in range(8)])


@slow
def test_mapped_trainings_that_wait_end_with_the_flow(flows: Flows, tmp_path: Path) -> None:
    """Interrupted while one of them trains and others wait for its CPUs."""
    mine = Flows(flows.client, tmp_path)
    mine.storage.mkdir()
    process = mine.start("eight_with_data")
    log = tmp_path / "eight_with_data.log"
    wait_until(lambda: WAITING in log.read_text() and "workers started" in log.read_text())
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=600) != 0
    rundirs = [RunDir.at(str(place)) for place in mine.storage.glob("run-*") if place.is_dir()]
    assert len(rundirs) >= 2
    trainings = DataTrainings(mine.storage)
    for rundir in rundirs:
        wait_until(lambda rundir=rundir: nothing_left(rundir.uri, trainings.trail(rundir.name)))
    assert sum(rundir.has_result() for rundir in rundirs) < len(rundirs)


def test_the_step_is_visible_in_prefect(flows: Flows, chain: list[TaskRun]) -> None:
    (run,) = flows.runs("chain")
    found = Run(flows.client, run.id, flows.storage).artifacts()
    assert {key.removeprefix("chain-train-") for key in found if key.startswith("chain-train-")} == {
        "progress",
        "metrics",
        "report",
        "ray-job",
    }
    assert found["chain-train-progress"].data == 100.0
    rows = json.loads(found["chain-train-metrics"].data)
    assert [row["epoch"] for row in rows] == [0, 1, 2]
    assert rows[0]["nan"] is None
    assert "](data:image/png;base64,iVBOR" in found["chain-train-report"].data
    assert re.search(r"effective training time.*\d+\.\d% of ", found["chain-train-report"].data)
    rundir = flows.rundir("chain", "train")
    assert rundir.uri in found["chain-train-report"].data
    assert rundir.receipt(1).job_url() in found["chain-train-ray-job"].data
    assert f"`raytrain cluster open {rundir.uri}` opens its page" in found["chain-train-ray-job"].description
    assert "chain-evaluate-report" in found


def test_the_checkpoint_is_an_asset_and_the_predictions_are_derived_from_it_and_the_data(
    flows: Flows, chain: list[TaskRun]
) -> None:
    trained, predicted = chain[0].state.result(), chain[-1].state.result()
    checkpoint, output = f"file://{trained.checkpoint.uri}", f"file://{predicted.output}"
    wait_until(lambda: output in _materialised(flows.client))
    events = _materialised(flows.client)
    assert events[checkpoint].payload["run"] == trained.run.uri
    assert events[checkpoint].payload["metrics"]["epoch"] == 2
    upstream = {related.id for related in events[output].related}
    assert {checkpoint, f"file://{flows.storage}/rows.parquet"} <= upstream


def _materialised(client: SyncPrefectClient) -> dict[str, Any]:
    query = {"filter": {"event": {"name": ["prefect.asset.materialization.succeeded"]}}}
    found = client._client.post("/events/filter", json=query).json()["events"]
    return {event.resource.id: event for event in map(ReceivedEvent.model_validate, found)}


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("no spec", "SpecError: spec: got int; expected a mapping of fields"),
        pytest.param("another kind", "SpecError: kind: got 'evaluate'; expected TrainSpec", marks=slow),
        pytest.param("an address", "SpecError: cluster: got 'http://127.0.0.1:8265'; expected", marks=slow),
        pytest.param("wrong token", "ClusterRefusedError: ", marks=slow),
        pytest.param("no pickle", "PayloadError: ", marks=slow),
    ],
)
def test_bad_input_is_refused_in_one_sentence_and_not_retried(
    flows: Flows, block: None, tmp_path: Path, what: str, sentence: str
) -> None:
    mine = Flows(flows.client, tmp_path)
    before = {run.id for run in mine.runs("takes")}
    assert mine.start("takes", "", what).wait(timeout=600) == 1
    (run,) = [run for run in mine.runs("takes") if run.id not in before]
    eventually(lambda: [task.state_name for task in Run(flows.client, run.id, mine.storage).tasks()], ["Failed"])
    (task,) = Run(flows.client, run.id, mine.storage).tasks()
    assert sentence in task.state.message
    assert task.run_count == 1
    assert not list(mine.storage.glob("*/.step/attempts/*"))


@pytest.mark.slow
def test_two_steps_under_one_key_are_refused_naming_both(flows: Flows) -> None:
    assert flows.start("two_under_one_key").wait(timeout=600) == 1
    eventually(lambda: flows.states("two_under_one_key"), ["Completed", "Failed"])
    first, second = flows.tasks("two_under_one_key")
    assert second.run_count == 1
    assert second.name in second.state.message
    assert first.name in second.state.message


@pytest.fixture
def block(client: SyncPrefectClient, head: Head) -> None:
    cluster = RayCluster(address=head.address, token=SecretStr(head.token), python=sys.executable)
    cluster.save("prod", overwrite=True)


@slow
def test_a_flow_runs_on_a_cluster_block_and_triggers_a_job_block(flows: Flows, block: None) -> None:
    assert RayCluster.load("prod").test().startswith("Ray 2.")
    job = training(str(flows.storage)).to_json()
    job = {**job, "train_loop_per_worker": "devtools.steps:counting_loop"}
    RayTrainJob(spec=job, cluster=RayCluster.load("prod"), key="job").save("job", overwrite=True)
    # by name alone, as `Block.load` does it for whoever has not imported the class
    assert isinstance(Block.load("ray-cluster/prod"), RayCluster)
    assert flows.start("on_a_block").wait(timeout=600) == 0, (flows.folder / "on_a_block.log").read_text()[-5000:]
    assert flows.rundir("on_a_block", "job").receipts() == [1]


def test_the_blocks_are_registered_by_the_module(prefect_api: str) -> None:
    command = [sys.executable, "-m", "prefect", "block", "register", "-m", "prefect_integration"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "Ray Cluster" in done.stdout
    assert "Ray Train Job" in done.stdout
