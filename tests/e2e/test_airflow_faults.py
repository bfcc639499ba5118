"""What a task's run survives and what ends it, in a real Airflow: every row of the lists in docs/airflow.md."""

import contextlib
import json
import os
import signal
import sqlite3
from typing import Any

import pytest

from airflow_provider.testing import AirflowServer
from devtools.chaos import Proxy, wait_until
from plugin_core.runs.directory import RunDir
from tests.e2e.airflow_scenario import STEPS, Make, Scenario

# ---- re-attach


def test_sigkill_of_the_task_process_right_after_the_submit_and_then_of_the_triggerer(scenario: Make) -> None:
    it = scenario("deferred").begin("die").held()
    wait_until(lambda: it.state() == "deferred")
    it.airflow.kill("triggerer")
    it.airflow.start("triggerer")
    it.go()
    it.succeeds([1], repeated=0)


@pytest.mark.slow
def test_sigkill_of_the_task_process_mid_run_when_synchronous(scenario: Make) -> None:
    it = scenario("synchronous").begin().held()
    os.kill(int((it.folder / "task.pid").read_text()), signal.SIGKILL)
    wait_until(lambda: it.airflow.task(it.dag_id, it.run_id, "train")["try_number"] == 2)
    it.go()
    it.succeeds([1], repeated=0)


@pytest.mark.slow
def test_sigstop_of_the_triggerer_hands_over_to_another_and_its_sigcont_stops_no_job(scenario: Make) -> None:
    it = scenario("deferred").begin().held()
    wait_until(lambda: "the job is running" in it.log())
    first = it.airflow.processes("triggerer")
    for process in first:
        process.suspend()
    told = it.log().count("the job is running")
    it.airflow.start("triggerer")
    wait_until(lambda: it.log().count("the job is running") > told)
    for process in first:
        process.resume()
    wait_until(lambda: "its Ray job continues" in it.log())
    it.go()
    it.succeeds([1], repeated=0)
    for process in first:
        if process.is_running():
            process.kill()


@pytest.mark.slow
def test_sigkill_of_the_scheduler(scenario: Make) -> None:
    it = scenario("deferred").begin().held()
    it.airflow.kill("scheduler")
    it.go()
    wait_until(lambda: it.rundir.result() is not None)
    it.airflow.start("scheduler")
    it.succeeds([1], repeated=0)


@pytest.mark.slow
def test_sigkill_of_the_scheduler_with_its_running_tasks_when_synchronous(scenario: Make) -> None:
    """The LocalExecutor's tasks die with it, and nobody reports them; the next scheduler finds them orphaned."""
    it = scenario("synchronous").begin().held()
    it.airflow.kill("scheduler")
    it.airflow.start("scheduler")
    wait_until(lambda: it.airflow.task(it.dag_id, it.run_id, "train")["try_number"] == 2)
    it.go()
    it.succeeds([1], repeated=0)


@pytest.mark.slow
def test_the_jobs_api_is_black_holed(scenario: Make, gate: Proxy) -> None:
    it = scenario("through_a_proxy").begin().held()
    gate.set("black hole")
    try:
        wait_until(lambda: "cannot be queried" in it.log())
        assert it.state() == "deferred"
        it.go()
        it.succeeds([1], repeated=0)
    finally:
        gate.set("forward")


# ---- clear


@pytest.mark.slow
@pytest.mark.parametrize("dag_id", ["deferred", "synchronous"])
def test_clear_while_running_attaches_to_the_live_job(scenario: Make, dag_id: str) -> None:
    it = scenario(dag_id).begin().held()
    before = it.airflow.task(dag_id, it.run_id, "train")["try_number"]
    it.airflow.clear(dag_id, it.run_id, "train")
    wait_until(lambda: it.airflow.task(dag_id, it.run_id, "train")["try_number"] > before)
    wait_until(lambda: it.state() in ("deferred", "running"))
    it.go()
    it.succeeds([1], repeated=0)


@pytest.mark.slow
def test_clear_after_a_failure_resumes_with_the_corrected_code(scenario: Make) -> None:
    it = scenario("mended").begin()
    assert it.airflow.wait(it.dag_id, it.run_id) == "failed"
    assert it.trail.steps() == [0, 1, 2]
    (it.folder / "mended").touch()
    clear_and_wait(it)
    result = it.succeeds([1, 2], repeated=1)
    assert result["metrics"]["first"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("dag_id", ["deferred", "synchronous"])
def test_clear_after_success_starts_from_scratch(scenario: Make, dag_id: str) -> None:
    it = scenario(dag_id).begin("go")
    first = it.succeeds([1], repeated=0)
    clear_and_wait(it)
    second = it.succeeds([1], repeated=STEPS)
    assert second["run"]["uri"] == first["run"]["uri"] + ".g2"
    assert second["metrics"]["first"] == 0
    assert it.trail.steps() == [*range(STEPS), *range(STEPS)]
    assert RunDir.at(first["run"]["uri"]).result() is not None, "the earlier generation is kept"


def clear_and_wait(it: Scenario) -> None:
    before = it.airflow.task(it.dag_id, it.run_id, "train")["try_number"]
    it.airflow.clear(it.dag_id, it.run_id, "train")
    wait_until(lambda: it.airflow.task(it.dag_id, it.run_id, "train")["try_number"] > before)


# ---- cancel


@pytest.mark.slow
@pytest.mark.parametrize("dag_id", ["deferred", "synchronous"])
@pytest.mark.parametrize("state", ["failed", "success"])
def test_mark_stops_the_job(scenario: Make, dag_id: str, state: str) -> None:
    it = scenario(dag_id).begin().held()
    it.airflow.set_task_state(dag_id, it.run_id, "train", state)
    it.is_stopped()
    assert it.state() == state


@pytest.mark.slow
def test_dag_run_marked_failed_stops_the_job(scenario: Make) -> None:
    it = scenario("deferred").begin().held()
    it.airflow.set_run_state(it.dag_id, it.run_id, "failed")
    it.is_stopped()


@pytest.mark.slow
def test_dagrun_timeout_stops_the_job(scenario: Make) -> None:
    it = scenario("timed").begin().held()
    # only now does its time begin to run out, however long a busy machine took to get here
    with contextlib.closing(sqlite3.connect(it.airflow.home / "airflow.db", timeout=60)) as database, database:
        database.execute("UPDATE dag_run SET start_date = '2020-01-01 00:00:00.000000' WHERE run_id = ?", [it.run_id])
    assert it.airflow.wait(it.dag_id, it.run_id) == "failed"
    it.is_stopped()


@pytest.mark.slow
def test_our_timeout_stops_the_job_and_is_not_retried(scenario: Make) -> None:
    it = scenario("limited").begin()
    assert it.airflow.wait(it.dag_id, it.run_id) == "failed"
    it.is_stopped()
    assert it.airflow.task(it.dag_id, it.run_id, "train")["try_number"] == 1
    assert "timeout_s" in it.log()


@pytest.mark.slow
def test_mark_failed_with_no_triggerer_stops_the_job(scenario: Make) -> None:
    it = scenario("deferred").begin().held()
    it.airflow.kill("triggerer")
    try:
        it.airflow.set_task_state(it.dag_id, it.run_id, "train", "failed")
        it.is_stopped()
    finally:
        it.airflow.start("triggerer")


@pytest.mark.slow
def test_mark_failed_while_the_cluster_cannot_be_reached_stops_the_job(scenario: Make, gate: Proxy) -> None:
    it = scenario("through_a_proxy").begin().held()
    gate.set("black hole")
    try:
        it.airflow.set_task_state(it.dag_id, it.run_id, "train", "failed")
        it.is_stopped()
    finally:
        gate.set("forward")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_synchronous_task_that_is_ended_in_its_last_try_leaves_no_job(scenario: Make, number: signal.Signals) -> None:
    it = scenario("last_try").begin().held()
    os.kill(int((it.folder / "task.pid").read_text()), number)
    it.is_stopped()
    assert it.airflow.wait(it.dag_id, it.run_id) == "failed"


@pytest.mark.slow
def test_sigkill_right_after_the_submit_in_the_last_try_leaves_no_job(scenario: Make) -> None:
    """Nobody follows the job, and no trigger ever did: the end of the DAG run ends it."""
    it = scenario("last_try").begin("die")
    assert it.airflow.wait(it.dag_id, it.run_id) == "failed"
    it.is_stopped()


@pytest.mark.slow
def test_sigterm_of_a_synchronous_task_that_has_a_retry_left_stops_no_job(scenario: Make) -> None:
    """Airflow's task process outlives a SIGTERM; what then ends it leaves the job to the retry."""
    it = scenario("synchronous").begin().held()
    os.kill(int((it.folder / "task.pid").read_text()), signal.SIGTERM)
    wait_until(lambda: "The task is running: its Ray job continues" in it.log())
    it.go()
    it.succeeds([1], repeated=0)


# ---- assets, bad input


@pytest.mark.slow
def test_a_decorated_loops_asset_event_starts_the_consumer(scenario: Make, airflow: AirflowServer) -> None:
    it = scenario("produces").begin()
    assert airflow.wait("produces", it.run_id) == "success", airflow.task_log("produces", it.run_id, "fit")
    result = airflow.xcom("produces", it.run_id, "fit")
    assert result["metrics"]["step"] == 1
    told = {}
    for dag_id in ("consumes", "consumes_alias"):
        runs = wait_until(lambda dag_id=dag_id: airflow.request("GET", f"/dags/{dag_id}/dagRuns")["dag_runs"])
        assert airflow.wait(dag_id, runs[-1]["dag_run_id"]) == "success"
        told[dag_id] = airflow.xcom(dag_id, runs[-1]["dag_run_id"], "told")
    assert told["consumes"]["checkpoint"] == result["checkpoint"]
    assert told["consumes"]["metrics"] == result["metrics"]
    assert told["consumes"]["run"]["name"] == result["run"]["name"]
    assert set(told["consumes_alias"]) == {result["checkpoint"]["uri"]}


@pytest.mark.slow
def test_dag_test_runs_the_whole_task_without_scheduler_or_triggerer(scenario: Make) -> None:
    """`airflow dags test`, which is `dag.test()`: it defers and runs the trigger itself."""
    it = scenario("deferred")
    it.go()
    for role in ("scheduler", "triggerer"):  # they would run the same task from the same database
        it.airflow.kill(role)
    try:
        said = it.airflow.command("dags", "test", "deferred", "--conf", json.dumps({"folder": str(it.folder)}))
    finally:
        for role in ("scheduler", "triggerer"):
            it.airflow.start(role)
    assert "state:success" in said or "state=success" in said, said[-3000:]
    assert it.trail.steps() == list(range(STEPS))
    assert "report 6: step=5" in said


BAD = {
    "closes_over": "the captured object 'connection' of type Unpicklable",
    "no_connection": "ray_conn_id: got 'nowhere', which does not exist",
    "wrong_type": "ray_conn_id: got 'a_web_server', a connection of type 'http'; expected one of type 'rayjobs'",
    "wrong_token": "returned 403 for the given token; expected the cluster's Ray auth token",
    "nonsense": "num_workers",
}


@pytest.mark.slow
def test_bad_input_is_one_sentence_and_is_not_retried(scenario: Make, airflow: AirflowServer) -> None:
    it = scenario("bad_input").begin()
    assert airflow.wait("bad_input", it.run_id) == "failed"
    for task_id, sentence in BAD.items():
        task = airflow.task("bad_input", it.run_id, task_id)
        assert (task["state"], task["try_number"]) == ("failed", 1)
        assert sentence in airflow.task_log("bad_input", it.run_id, task_id).replace('\\"', '"'), task_id
    assert not any(it.runs.glob("bad_input*/.step/attempts/*")), "nothing was submitted"


@pytest.mark.slow
def test_the_connections_test_button_says_what_it_found_or_what_is_wrong(airflow: AirflowServer, gate: Proxy) -> None:
    def tested(**fields: Any) -> dict[str, Any]:
        body = {"connection_id": "tested", "conn_type": "rayjobs", "host": "127.0.0.1", **fields}
        answer: dict[str, Any] = airflow.request("POST", "/connections/test", body)
        return answer

    from plugin_core.clusters import local_head

    head = local_head.current()
    assert head is not None
    good = tested(port=gate.port, password=head.token)
    assert good["status"] is True
    assert "1 nodes, 4 CPUs, 0 GPUs" in good["message"]
    bad = tested(port=gate.port, password="wrong")
    assert bad["status"] is False
    assert "returned 403 for the given token" in bad["message"]
    assert tested(port=1, password="x")["status"] is False


@pytest.mark.slow
def test_the_token_is_nowhere_in_airflows_database_or_logs(airflow: AirflowServer, head: Any, scenario: Make) -> None:
    it = scenario("through_a_proxy").begin().held()
    for file in airflow.home.rglob("*"):
        if file.is_file():
            assert head.token.encode() not in file.read_bytes(), file
    it.go()
    it.succeeds([1], repeated=0)


@pytest.mark.slow
def test_a_task_that_defers_without_a_triggerer_says_so(airflow: AirflowServer, scenario: Make) -> None:
    airflow.kill("triggerer")
    try:
        wait_until(lambda: airflow.request("GET", "/monitor/health")["triggerer"]["status"] != "healthy")
        it = scenario("deferred").begin("go")
        wait_until(lambda: it.state() == "deferred")
        wait_until(lambda: "no triggerer is alive" in it.log())
    finally:
        airflow.start("triggerer")
    it.succeeds([1], repeated=0)
