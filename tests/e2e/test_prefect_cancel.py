"""A cancel in Prefect stops the Ray jobs, however the task runs and whatever runs the flow. Real server, runner, worker."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate

from tests.e2e.prefect_runs import ROOT, Process, Run, only_run, start, wait_until

slow = pytest.mark.slow


@pytest.fixture(scope="module")
def served(client: SyncPrefectClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    runner = Process(["-m", "tests.e2e.prefect_serve", "served"], tmp_path_factory.mktemp("served") / "runner.log")
    yield runner
    runner.close()


def cancelled(run: Run, steps: int = 1) -> None:
    """Cancel it while it trains; every job must be stopped, and both Prefect and the run directory must say so."""
    run.wait_for_training(steps)
    run.cancel()
    run.wait_for("Cancelled")
    jobs_ended(run, steps)


def its_task_says_so(run: Run) -> None:
    """Not as one that crashed. A runner kills a process that takes longer than its grace, which then says nothing."""
    wait_until(lambda: run.tasks()[0].state_name == "Failed", "the end of its task")
    assert "StepCancelledError: the " in str(run.tasks()[0].state.message)


def jobs_ended(run: Run, steps: int = 1) -> None:
    wait_until(lambda: all(rundir.end(1) for rundir in run.rundirs()), "the end of the attempts")
    assert {rundir.end(1).outcome for rundir in run.rundirs()} == {"cancelled"}
    # FAILED where the driver read the intent before the stop arrived
    wait_until(lambda: set(run.job_states()) <= {"STOPPED", "FAILED"}, "the end of the jobs")
    assert len(run.rundirs()) == steps


@slow
def test_a_cancel_stops_the_job_of_a_task_that_a_served_flow_calls(
    client: SyncPrefectClient, served: Process, storage: Path
) -> None:
    cancelled(start(client, "direct/served", storage))


def test_a_cancel_stops_the_job_of_a_submitted_task(client: SyncPrefectClient, served: Process, storage: Path) -> None:
    cancelled(start(client, "submitted/served", storage))


@slow
def test_a_cancel_stops_the_jobs_of_mapped_tasks(client: SyncPrefectClient, served: Process, storage: Path) -> None:
    cancelled(start(client, "mapped/served", storage), steps=2)


@slow
def test_a_cancel_stops_the_job_of_an_awaited_task(client: SyncPrefectClient, served: Process, storage: Path) -> None:
    cancelled(start(client, "awaited/served", storage))


@slow
def test_a_cancel_of_the_parent_stops_the_job_of_a_subflow(
    client: SyncPrefectClient, served: Process, storage: Path
) -> None:
    cancelled(start(client, "in-a-subflow/served", storage))


@slow
def test_the_hook_stops_the_job_of_a_flow_whose_process_died(
    client: SyncPrefectClient, served: Process, storage: Path
) -> None:
    """The flow's process cannot do it: it is frozen when the cancel comes, and the runner kills it after its grace."""
    run = start(client, "hooked/served", storage)
    run.wait_for_training()
    engines = [child for child in served.children() if "prefect" in " ".join(child.cmdline()) and child.children() == []]
    for engine in engines:
        engine.suspend()
    cancelled(run)


@slow
def test_a_cancel_stops_the_job_of_a_process_workers_run(client: SyncPrefectClient, storage: Path, tmp_path: Path) -> None:
    from tests.e2e.prefect_flows import submitted

    client.create_work_pool(WorkPoolCreate(name="processes", type="process"))
    submitted.from_source(source=str(ROOT), entrypoint="tests/e2e/prefect_flows.py:submitted").deploy(
        name="worked", work_pool_name="processes", print_next_steps=False
    )
    worker = Process(
        ["-m", "prefect", "worker", "start", "--pool", "processes", "--type", "process"], tmp_path / "worker.log"
    )
    try:
        cancelled(start(client, "submitted/worked", storage))
    finally:
        worker.close()


@slow
@pytest.mark.parametrize("flow", ["direct", "submitted", "awaited"])
def test_a_cancel_stops_the_job_of_a_flow_without_a_runner(
    client: SyncPrefectClient, storage: Path, tmp_path: Path, flow: str
) -> None:
    process = Process(["-m", "tests.e2e.prefect_flows", flow, str(storage)], tmp_path / "flow.log")
    try:
        run = only_run(client, storage)
        run.wait_for_training(1)
        run.cancel()
        assert process.wait(600) != 0
        assert run.state == "Cancelled", "the process saw to that before it ended; some minutes later the server does"
        jobs_ended(run)
        its_task_says_so(run)
    finally:
        process.close()


@slow
@pytest.mark.parametrize("flow", ["direct", "submitted", "mapped", "awaited", "submitted_by_async"])
def test_an_interrupt_from_the_keyboard_stops_the_job(
    client: SyncPrefectClient, storage: Path, tmp_path: Path, flow: str
) -> None:
    process = Process(["-m", "tests.e2e.prefect_flows", flow, str(storage)], tmp_path / "flow.log")
    try:
        run = only_run(client, storage)
        steps = 2 if flow == "mapped" else 1
        run.wait_for_training(steps)
        process.send_signal(signal.SIGINT)
        assert process.wait(600) != 0
        assert [rundir.intent().cancel_through for rundir in run.rundirs()] == [1] * steps
        wait_until(lambda: set(run.job_states()) <= {"STOPPED", "FAILED"}, "the end of the job")
        log = process.log.read_text()
        assert "Exception ignored" not in log, log[-3000:]
        assert "_wait_for_tstate_lock" not in log, "no thread is waited for, and interrupted again"
    finally:
        process.close()
