"""Functions and commands as tasks of a real Airflow; the DAGs of docs/migrate-astro-provider-ray.md; a shared cluster."""

import pytest

from airflow_provider.testing import AirflowServer
from devtools.chaos import wait_until
from tests.e2e.test_airflow import dag_runs
from tests.support.fake_kubernetes import FakeKubernetes


def succeeds(airflow: AirflowServer, dag_id: str, task_id: str) -> str:
    run_id = airflow.trigger(dag_id)
    assert airflow.wait(dag_id, run_id) == "success", airflow.task_log(dag_id, run_id, task_id)
    return run_id


@pytest.mark.slow
def test_a_decorated_function_returns_what_it_returns(airflow: AirflowServer) -> None:
    run_id = succeeds(airflow, "ray_taskflow_example", "process_data_with_ray")
    assert airflow.xcom("ray_taskflow_example", run_id, "process_data_with_ray") == pytest.approx(14 / 3)
    result = airflow.xcom("ray_taskflow_example", run_id, "process_data_with_ray", "result")
    assert (result["kind"], result["run"]["attempt"]) == ("ray_job", 1)
    assert "Mean of this population is 4.6" in airflow.task_log("ray_taskflow_example", run_id, "process_data_with_ray")


@pytest.mark.slow
def test_the_modules_of_a_packaged_dag_reach_the_cluster(airflow: AirflowServer) -> None:
    run_id = succeeds(airflow, "packaged", "by_value")
    for task_id in ("by_value", "by_name"):
        assert airflow.xcom("packaged", run_id, task_id)["metrics"] == {"width": 7, "name": "vision"}


@pytest.mark.slow
def test_a_script_runs_from_its_folder(airflow: AirflowServer) -> None:
    run_id = succeeds(airflow, "ray_single_operator", "SubmitRayJob")
    log = airflow.task_log("ray_single_operator", run_id, "SubmitRayJob")
    assert "hello world" in log
    assert "finished: the command exited with 0" in log


@pytest.mark.slow
def test_a_cluster_is_there_for_the_step_without_tasks_around_it(
    airflow: AirflowServer, kubernetes: FakeKubernetes
) -> None:
    before = len(kubernetes.methods())
    succeeds(airflow, "setup_teardown", "SubmitRayJob")
    assert kubernetes.methods()[before:] == ["POST", "DELETE"]


@pytest.mark.slow
def test_a_dag_that_is_triggered_has_a_cluster_of_its_own(airflow: AirflowServer, kubernetes: FakeKubernetes) -> None:
    before = len(kubernetes.methods())
    succeeds(airflow, "ray_dynamic_config_parent", "trigger_downstream_dag_1")
    for number, task_id, value in ((1, "process_data_with_ray", 12.0), (2, "sum_with_ray", 14)):
        child = f"ray_dynamic_config_child_{number}"
        (run_id,) = wait_until(lambda child=child: dag_runs(airflow, child))
        assert airflow.wait(child, run_id) == "success", airflow.task_log(child, run_id, task_id)
        assert airflow.xcom(child, run_id, task_id) == value
    assert sorted(kubernetes.methods()[before:]) == ["DELETE", "DELETE", "POST", "POST"]


@pytest.mark.slow
def test_three_steps_share_a_cluster_which_the_end_of_the_dag_run_deletes(
    airflow: AirflowServer, kubernetes: FakeKubernetes
) -> None:
    before = len(kubernetes.methods())
    succeeds(airflow, "shared_cluster", "check")
    wait_until(lambda: not any(name.startswith("shared-") for name in kubernetes.clusters) or _leaving(kubernetes))
    made = kubernetes.methods()[before:]
    assert (made.count("POST"), made.count("DELETE")) == (1, 1)


@pytest.mark.slow
def test_a_dag_may_start_and_end_the_cluster_by_tasks_of_its_own(
    airflow: AirflowServer, kubernetes: FakeKubernetes
) -> None:
    before = len(kubernetes.methods())
    run_id = succeeds(airflow, "explicit_cluster", "double")
    assert "ready: a KubeRay cluster, shared-" in airflow.task_log("explicit_cluster", run_id, "start")
    made = kubernetes.methods()[before:]
    assert (made.count("POST"), made.count("DELETE")) == (1, 1), "the end of the DAG run finds it deleted"


def _leaving(kubernetes: FakeKubernetes) -> bool:
    return all("deletionTimestamp" in each["metadata"] for each in kubernetes.clusters.values())
