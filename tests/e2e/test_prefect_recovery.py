"""Whatever dies on Prefect's side, the same training continues: one job, found again by the retried flow run."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterParentFlowRunId
from prefect.states import AwaitingRetry

from prefect_integration import create_recovery_automations
from tests.e2e.prefect_runs import ROOT, Process, Run, only_run, start, wait_for_deployment, wait_until

slow = pytest.mark.slow


@pytest.fixture
def runner(client: SyncPrefectClient, tmp_path: Path) -> Iterator[Process]:
    runner = Process(["-m", "tests.e2e.prefect_serve", tmp_path.name], tmp_path / "runner.log")
    yield runner
    runner.close()


def retry(run: Run) -> None:
    command = [sys.executable, "-m", "prefect", "flow-run", "retry", str(run.id)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ)
    assert done.returncode == 0, done.stdout + done.stderr


def kill_children(process: Process) -> None:
    for child in process.children():
        try:
            child.kill()
        except psutil.NoSuchProcess:
            pass


def went_on(run: Run) -> None:
    """Let the training end; it must be the one that was started first."""
    (run.storage / "go").touch()
    run.wait_for("Completed")
    (rundir,) = run.rundirs()
    assert rundir.receipts() == [1]
    assert rundir.result().metrics["started_at"] == 0
    # the result is there a moment before its job is over
    wait_until(lambda: run.job_states() == ["SUCCEEDED"], "the end of the job")


@pytest.mark.slow
def test_a_flow_process_that_is_killed_leaves_its_job_and_a_retry_of_the_flow_run_attaches(
    client: SyncPrefectClient, runner: Process, storage: Path, tmp_path: Path
) -> None:
    run = start(client, f"hooked/{tmp_path.name}", storage)
    run.wait_for_training()
    kill_children(runner)
    run.wait_for("Crashed")
    assert run.job_states() == ["RUNNING"]
    # what the `on_crashed` hook says
    wait_until(lambda: any("is still running: `prefect flow-run retry" in line for line in run.log()), "the hook's word")
    retry(run)
    run.wait_for("Running")
    went_on(run)
    assert run.flow_run.run_count == 2


@slow
def test_a_flow_run_whose_runner_is_killed_too_continues_by_itself(
    client: SyncPrefectClient, runner: Process, storage: Path, tmp_path: Path
) -> None:
    deployment = f"direct/{tmp_path.name}"
    wait_for_deployment(client, deployment)
    automations = create_recovery_automations([deployment], missing_heartbeat_s=60, name=tmp_path.name)
    try:
        run = start(client, deployment, storage)  # only now: an automation sees no heartbeat from before it
        run.wait_for_training()
        runner.close()
        next_runner = Process(["-m", "tests.e2e.prefect_serve", tmp_path.name], tmp_path / "next.log")
        try:
            wait_until(lambda: run.flow_run.run_count == 2, "the second run of the flow run")
            assert run.job_states() == ["RUNNING"]
            went_on(run)
        finally:
            next_runner.close()
    finally:
        for automation in automations:
            automation.delete()


@slow
@pytest.mark.parametrize("flow", ["awaited", "direct", "submitted"])
def test_a_flow_process_that_is_terminated_without_a_cancel_leaves_its_job_alone(
    client: SyncPrefectClient, storage: Path, tmp_path: Path, flow: str
) -> None:
    process = Process(["-m", "tests.e2e.prefect_flows", flow, str(storage)], tmp_path / "flow.log")
    try:
        run = only_run(client, storage)
        run.wait_for_training()
        process.send_signal(signal.SIGTERM)
        if flow == "submitted":
            # Prefect waits for a submitted task, which goes on; whoever evicts the pod kills it then
            before = len(run.reports())
            wait_until(lambda: len(run.reports()) > before + 3, "further reports")
            process.kill()
        assert process.wait(600) != 0
        (rundir,) = run.rundirs()
        assert rundir.intent().cancel_through == 0
        assert run.job_states() == ["RUNNING"]
    finally:
        process.close()
    client.set_flow_run_state(run.id, AwaitingRetry(), force=True)
    again = Process(["-m", "tests.e2e.prefect_flows", flow, str(storage), str(run.id)], tmp_path / "flow.log")
    try:
        went_on(run)
    finally:
        again.close()


@slow
def test_a_suspended_flow_run_resumes_without_a_second_training(
    client: SyncPrefectClient, runner: Process, storage: Path, tmp_path: Path
) -> None:
    run = start(client, f"suspended/{tmp_path.name}", storage)
    run.wait_for("Suspended")
    client.resume_flow_run(run.id)
    run.wait_for("Completed")
    assert [rundir.receipts() for rundir in run.rundirs()] == [[1], [1]]


@slow
def test_a_subflow_that_gets_another_id_on_its_parents_retry_has_the_same_training(
    client: SyncPrefectClient, storage: Path, tmp_path: Path
) -> None:
    process = Process(["-m", "tests.e2e.prefect_flows", "parent_fails_once", str(storage)], tmp_path / "flow.log")
    try:
        assert process.wait(600) == 0, process.log.read_text()[-3000:]
        run = only_run(client, storage)
        parents = FlowRunFilterParentFlowRunId(any_=[run.id])
        subflows = client.read_flow_runs(flow_run_filter=FlowRunFilter(parent_flow_run_id=parents))
        assert len({subflow.id for subflow in subflows}) == 2
        (rundir,) = run.rundirs()
        assert rundir.name == f"{run.id}--fails-with-its-parent-0--fit"
        assert rundir.receipts() == [1]
    finally:
        process.close()


@pytest.mark.slow
def test_the_recovery_automations_are_created_once_and_brought_up_to_date(client: SyncPrefectClient) -> None:
    first = create_recovery_automations(name="twice")
    second = create_recovery_automations(name="twice", max_runs=2)
    try:
        assert [automation.id for automation in first] == [automation.id for automation in second]
        (kept,) = client.read_automations_by_name("twice: crashed flow runs go on")
        assert kept.trigger.match["prefect.run-count"] == ["0", "1"]
    finally:
        for automation in second:
            automation.delete()
