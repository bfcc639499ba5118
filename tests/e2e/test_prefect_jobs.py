"""Functions and commands as Prefect tasks, and a cluster that the steps of a flow run share."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from prefect.client.orchestration import SyncPrefectClient

from plugin_core import RayJobResult
from plugin_core.clusters.local_head import Head
from tests.e2e.prefect_runs import ROOT
from tests.e2e.test_docs import program
from tests.e2e.test_prefect import Flows, eventually
from tests.support.fake_kubernetes import FakeKubernetes

pytestmark = pytest.mark.slow


@pytest.fixture
def own_flows(client: SyncPrefectClient, tmp_path: Path) -> Flows:
    return Flows(client, tmp_path)


def log(flows: Flows, name: str) -> str:
    return (flows.folder / f"{name}.log").read_text()[-5000:]


def test_a_function_returns_its_value_and_a_retried_flow_gets_it_again(own_flows: Flows) -> None:
    assert own_flows.start("jobs").wait(timeout=600) == 0, log(own_flows, "jobs")
    eventually(lambda: own_flows.states("jobs"), ["Completed", "Cached", "Completed"])
    first, again, said = (task.state.result() for task in own_flows.tasks("jobs"))
    assert first == again == [2, 4]
    assert isinstance(said, RayJobResult)
    assert own_flows.rundir("jobs", "double").receipts() == [1]
    assert [task.name.partition("-")[0] for task in own_flows.tasks("jobs")] == ["double", "double", "ray_job"]


@pytest.mark.parametrize("name", ["shared", "shared_by_tasks"])
def test_the_steps_of_a_flow_run_share_a_cluster_which_its_end_deletes(
    own_flows: Flows, head: Head, tmp_path: Path, name: str
) -> None:
    with FakeKubernetes(tmp_path, token=head.token) as kubernetes:
        place = {"kubeconfig": str(kubernetes.kubeconfig), "address": head.address, "python": sys.executable}
        process = own_flows.start(name, "", json.dumps({"name": "flow", **place}))
        assert process.wait(timeout=600) == 0, log(own_flows, name)
        made = kubernetes.methods()
        assert (made.count("POST"), made.count("DELETE")) == (1, 1)
        assert made[-1] == "DELETE"


def test_the_page_for_users_of_prefect_ray_runs_as_written(own_flows: Flows, tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text(program("migrate-prefect-ray"))
    where = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_STORAGE": str(tmp_path / "runs")}
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=600, env=where)
    assert done.returncode == 0, done.stderr[-5000:]
    assert "[0, 1] [0, 1, 2]" in done.stdout
    eventually(lambda: {task.name.partition("-")[0] for task in own_flows.tasks("count_to")}, {"shout", "shout loudly"})


def test_a_step_waits_in_a_queue_and_another_moves_on_from_a_cluster_that_is_not_there(
    own_flows: Flows, head: Head, tmp_path: Path
) -> None:
    with FakeKubernetes(tmp_path, token=head.token) as kubernetes:
        place = {"kubeconfig": str(kubernetes.kubeconfig), "address": head.address, "python": sys.executable}
        name = "queued_and_falling_back"
        process = own_flows.start(name, "", json.dumps({"name": "flow", **place}))
        assert process.wait(timeout=600) == 0, log(own_flows, name)
    told = (own_flows.folder / f"{name}.log").read_text()
    assert "queued: RayCluster default/flow-" in told
    assert "waits in Kueue's queue gpus, 2 ahead" in told
    assert "moving on to a local Ray head" in told
    eventually(lambda: own_flows.states(name), ["Completed", "Completed"])
