"""The operators in a real Airflow: scheduler, triggerer and API server; everything is asked over REST."""

import asyncio
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.testing import AirflowServer
from devtools.chaos import wait_until
from plugin_core import LocalCluster
from plugin_core.clusters.jobs_api import JobInfo
from plugin_core.runs.directory import RunDir, run_name
from tests.e2e.airflow_server import dag_of_the_docs


def jobs_of(rundir: RunDir) -> list[JobInfo]:
    async def ask() -> list[JobInfo]:
        async with await LocalCluster().connect() as client:
            return [job for job in await client.jobs() if (job.metadata or {}).get("run") == rundir.uri]

    return asyncio.run(ask())


def rundir_of(folder: Path, dag_id: str, run_id: str) -> RunDir:
    return RunDir.at(str(folder / "runs" / run_name(dag_id, run_id, "train")))


@pytest.mark.slow
def test_a_train_task_defers_and_the_next_tasks_read_its_small_result(airflow: AirflowServer, folder: Path) -> None:
    run_id = airflow.trigger("chain")
    assert airflow.wait_for_task("chain", run_id, "train", {"deferred"}) == "deferred"
    rundir = rundir_of(folder, "chain", run_id)
    receipt = rundir.receipt(1)
    assert receipt is not None
    assert receipt.submission_id in airflow.xcom("chain", run_id, "train", "_link_RayJobLink")
    (folder / "chain-go").touch()

    assert airflow.wait("chain", run_id) == "success", airflow.task_log("chain", run_id, "train")

    train = airflow.xcom("chain", run_id, "train")
    assert len(json.dumps(train)) <= 2048
    assert train["run"] == {"uri": rundir.uri, "name": rundir.name, "attempt": 1}
    assert train["metrics"] == {"epoch": 3, "started_at": 0, "workers": 2, "nan": None}
    assert Path(train["checkpoint"]["uri"], "state.json").exists()
    assert re.match(r"\d+\.\d% of ", airflow.xcom("chain", run_id, "train", "effective_training_time"))

    evaluation = airflow.xcom("chain", run_id, "evaluate")
    assert (evaluation["metrics"], evaluation["passed"]) == ({"score": 3.0, "rows": 20}, True)
    assert evaluation["checkpoint"] == train["checkpoint"]

    predicted = airflow.xcom("chain", run_id, "batch_infer")
    assert predicted["rows"] == 20
    assert list(Path(predicted["output"]).glob("*.parquet"))

    # the result is there a moment before its job is over
    wait_until(lambda: [job.status for job in jobs_of(rundir)] == ["SUCCEEDED"])
    assert (jobs_of(rundir)[0].metadata or {})["airflow_dag_id"] == "chain"
    assert "epoch=3" in airflow.task_log("chain", run_id, "train")


def log_of_the_only_try(airflow: AirflowServer, dag_id: str) -> str:
    """Of a training that fails although its task may be tried again."""
    run_id = airflow.trigger(dag_id)
    assert airflow.wait(dag_id, run_id) == "failed"
    task = airflow.task(dag_id, run_id, "train")
    assert (task["state"], task["try_number"]) == ("failed", 1)
    return airflow.task_log(dag_id, run_id, "train")


@pytest.mark.slow
def test_a_user_error_fails_without_a_retry_and_its_message_is_in_the_task_log(airflow: AirflowServer) -> None:
    log = log_of_the_only_try(airflow, "broken")
    assert "UserCodeError" in log
    assert "ValueError: the data of epoch 1 is bad" in log


@pytest.mark.slow
def test_a_policy_that_gives_up_leaves_nothing_to_airflows_retries(airflow: AirflowServer) -> None:
    log = log_of_the_only_try(airflow, "giving_up")
    # rank 1 is killed right after its first report, before or after the checkpoint is registered
    assert re.search("failure 1 of 1; (resuming from checkpoint_a001_000001|starting over)", log)
    assert "GaveUpError" in log
    assert "failure_policy.worker_lost.at_most allows no more than 1 restarts" in log


@pytest.mark.slow
@pytest.mark.parametrize("dag_id", ["broken", "chain"])
def test_no_log_has_an_error_for_a_link_that_there_is_not(airflow: AirflowServer, folder: Path, dag_id: str) -> None:
    """No task here has a tracker's page, and at a deferral none could have one yet."""
    (folder / "chain-go").touch()
    run_id = airflow.trigger(dag_id)
    airflow.wait(dag_id, run_id)
    logs = [airflow.log("scheduler"), airflow.log("triggerer"), airflow.task_log(dag_id, run_id, "train")]
    assert [line for log in logs for line in log.splitlines() if "XCom not found" in line and "_link_" in line] == []
    assert airflow.xcom(dag_id, run_id, "train", "_link_RayTrackingLink") == ""
    assert "/#/jobs/" in airflow.xcom(dag_id, run_id, "train", "_link_RayJobLink")


def test_marked_failed_stops_the_ray_job_and_a_clear_resumes_the_run(airflow: AirflowServer, folder: Path) -> None:
    run_id = airflow.trigger("waiting")
    rundir = rundir_of(folder, "waiting", run_id)
    assert airflow.wait_for_task("waiting", run_id, "train", {"deferred"}) == "deferred"
    while len(list(Path(rundir.uri).glob("checkpoint_*"))) < 2:
        time.sleep(0.5)

    airflow.set_task_state("waiting", run_id, "train", "failed")
    while not all(job.terminal for job in jobs_of(rundir)):
        time.sleep(0.5)
    assert airflow.wait("waiting", run_id) == "failed"
    assert rundir.receipts() == [1]

    (folder / "go").touch()
    airflow.clear("waiting", run_id, "train")
    while airflow.run_state("waiting", run_id) == "failed":
        time.sleep(0.2)
    assert airflow.wait("waiting", run_id) == "success", airflow.task_log("waiting", run_id, "train", 2)
    result = airflow.xcom("waiting", run_id, "train")
    assert result["run"] == {"uri": rundir.uri, "name": rundir.name, "attempt": 2}
    assert result["metrics"]["started_at"] >= 1
    assert Path(result["checkpoint"]["uri"], "state.json").exists()
    assert len(json.dumps(result)) <= 2048


@pytest.mark.slow
def test_the_smallest_dag_of_the_docs_gives_a_trained_model(airflow: AirflowServer) -> None:
    assert len(dag_of_the_docs("smallest").splitlines()) <= 25
    run_id = airflow.trigger("smallest")
    assert airflow.wait("smallest", run_id) == "success", airflow.task_log("smallest", run_id, "train")
    result = airflow.xcom("smallest", run_id, "train")
    assert (result["metrics"]["epoch"], result["metrics"]["loss"] < 4) == (29, True), "8 before the training"
    assert Path(result["checkpoint"]["uri"], "model.pt").exists()
    assert "100%" in airflow.task_log("smallest", run_id, "train")


@pytest.mark.slow
def test_new_data_retrains_warm_from_the_champion_and_promotes_the_better_model(airflow: AirflowServer) -> None:
    """`example_dags/retrain.py`, twice: without a champion, then with the one that the first run promoted."""
    started_from: list[Any] = []
    seen: set[str] = set()
    for number in (1, 2):
        assert airflow.wait("new_digits", airflow.trigger("new_digits")) == "success"
        (run_id,) = wait_until(lambda: dag_runs(airflow, "retrain_digits") - seen)
        seen.add(run_id)
        state = airflow.wait("retrain_digits", run_id, timeout_s=600)
        states = airflow.task_states("retrain_digits", run_id)
        assert state == "success", [airflow.task_log("retrain_digits", run_id, task) for task in states]
        assert (states["promote"], states["keep"]) in (("success", "skipped"), ("skipped", "success"))
        train = airflow.xcom("retrain_digits", run_id, "train")
        started_from.append(RunDir.at(train["run"]["uri"]).read_record()["spec"]["resume_from"])
        if number == 1:
            assert states["promote"] == "success"
            champion = train["checkpoint"]
        assert train["metrics"]["epoch"] == (11, 3)[number - 1]
    assert started_from == [None, champion]


def dag_runs(airflow: AirflowServer, dag_id: str) -> set[str]:
    return {run["dag_run_id"] for run in airflow.request("GET", f"/dags/{dag_id}/dagRuns")["dag_runs"]}
