"""One cluster for all steps of a workflow, on a fake of Kubernetes: found again, never deleted under a step, never left."""

import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from plugin_core import FallbackCluster, KubeRayCluster, LocalCluster, RunConfig, run
from plugin_core.cli import app
from plugin_core.clusters import kuberay, shared
from plugin_core.clusters import kuberay_lease as leases
from plugin_core.clusters.fake import FakeCluster
from plugin_core.clusters.find import find_cluster
from plugin_core.clusters.shared import end_shared, start_shared
from plugin_core.errors import ClusterUnreachableError, SpecError
from plugin_core.supervisor.supervisor import run_sync
from tests.support import leasing
from tests.support.fake_kubernetes import FakeKubernetes
from tests.support.fake_steps import spec_at

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kuberay, "POLL_S", 0.05)


@pytest.fixture
def cluster(kubernetes: FakeKubernetes, ray: FakeCluster) -> KubeRayCluster:
    return leasing.cluster_at(str(kubernetes.kubeconfig), ray.address, lease_s=600.0)


def do(name: str, cluster: KubeRayCluster, folder: Path) -> Any:
    config = RunConfig(name=name, storage_path=str(folder / "runs"))
    return run(spec_at(folder).model_copy(update={"run_config": config}), cluster, progress=False)


def living(kubernetes: FakeKubernetes) -> list[str]:
    return [name for name, each in kubernetes.clusters.items() if "deletionTimestamp" not in each["metadata"]]


def annotations(kubernetes: FakeKubernetes) -> dict[str, str]:
    (found,) = kubernetes.clusters.values()
    given: dict[str, str] = found["metadata"]["annotations"]
    return given


def test_three_steps_share_a_cluster_which_ends_with_the_workflow(
    tmp_path: Path, cluster: KubeRayCluster, kubernetes: FakeKubernetes, ray: FakeCluster
) -> None:
    for name in leasing.STEPS:
        do(name, cluster, tmp_path)
        assert len(living(kubernetes)) == 1
        assert not leases.is_needed(annotations(kubernetes)), "a step that is over holds nothing"
    assert (len(ray.jobs), kubernetes.methods().count("POST")) == (3, 1)
    run_sync(cluster.end_workflow())
    assert living(kubernetes) == []


def test_another_workflow_has_another_cluster(cluster: KubeRayCluster) -> None:
    other = replace(cluster, workflow="").of_workflow("flow-2")
    assert cluster.of_run("/runs/a").name == cluster.of_run("/runs/b").name != other.of_run("/runs/a").name
    assert cluster.of_workflow("flow-2") == cluster
    per_run = replace(cluster, workflow="", share="run")
    assert per_run.of_workflow("flow-1") == per_run


def test_any_process_finds_it_by_its_reference(cluster: KubeRayCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYTRAIN_CLUSTERS", cluster.address)
    monkeypatch.setenv("KUBECONFIG", cluster.kubeconfig or "")
    found = find_cluster(cluster.reference())
    assert found.of_run("/runs/a").identity == cluster.of_run("/runs/a").identity


def test_it_stays_while_another_step_needs_it(
    tmp_path: Path, cluster: KubeRayCluster, kubernetes: FakeKubernetes, ray: FakeCluster
) -> None:
    needing = cluster.of_run("/runs/other")
    run_sync(needing.connect())
    do("train", replace(cluster, linger_s=0.0), tmp_path)
    run_sync(cluster.end_workflow())
    run_sync(leasing.cluster_at(str(kubernetes.kubeconfig), ray.address, "flow-2").of_run("/runs/x").sweep())
    assert len(living(kubernetes)) == 1
    run_sync(replace(needing, linger_s=0.0).release(True))
    run_sync(cluster.end_workflow())
    assert living(kubernetes) == []


def test_a_step_within_the_time_that_it_lingers_takes_it_up(
    tmp_path: Path, cluster: KubeRayCluster, kubernetes: FakeKubernetes
) -> None:
    do("train", cluster, tmp_path)
    assert datetime.fromisoformat(annotations(kubernetes)[leases.DELETE_AFTER]) > datetime.now(UTC)
    run_sync(cluster.of_run("/runs/next").connect())
    assert leases.DELETE_AFTER not in annotations(kubernetes)


def steps(folder: Path, kubernetes: FakeKubernetes, ray: FakeCluster, *killed_at: str) -> subprocess.CompletedProcess[str]:
    """All steps of a workflow in a process of their own."""
    place = [str(folder / "runs"), str(kubernetes.kubeconfig), ray.address]
    command = [sys.executable, "-m", "tests.support.leasing", *place, *killed_at]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)


@pytest.mark.slow
@pytest.mark.parametrize(("moment", "step"), [
    ("submitted", 2), ("created", 1), ("taken up", 1), ("before submit", 1), ("renewed", 1), ("renewed", 2),
    ("before release", 2), ("released", 1), ("released", 3), ("before the end", 1),
])  # fmt: skip
def test_whoever_holds_it_is_killed(
    tmp_path: Path, kubernetes: FakeKubernetes, ray: FakeCluster, moment: str, step: int
) -> None:
    killed = steps(tmp_path, kubernetes, ray, moment, str(step))
    assert killed.returncode == -9, killed.stderr
    again = steps(tmp_path, kubernetes, ray)
    assert again.stdout == "done\n", again.stderr
    assert kubernetes.methods().count("POST") == 1, "one cluster for all"
    assert len(ray.jobs) == 3, "one job for each step"
    assert living(kubernetes) == []


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["created", "taken up", "submitted"])
def test_when_nobody_comes_back_the_next_run_deletes_it_once_its_leases_end_and_no_job_lives(
    tmp_path: Path, kubernetes: FakeKubernetes, ray: FakeCluster, moment: str
) -> None:
    ray.plays = ["hang"]
    killed = steps(tmp_path, kubernetes, ray, moment, "1")
    assert killed.returncode == -9, killed.stderr
    (name,) = living(kubernetes)
    next_one = leasing.cluster_at(str(kubernetes.kubeconfig), ray.address, "flow-2").of_run("/runs/next")
    run_sync(next_one.sweep())
    assert living(kubernetes) == [name], "its lease has not ended"
    _let_leases_end(kubernetes)
    run_sync(next_one.sweep())
    if moment == "submitted":
        assert living(kubernetes) == [name], "its job lives"
        ray.jobs = dict.fromkeys(ray.jobs, "FAILED")
        run_sync(next_one.sweep())
    assert living(kubernetes) == []


@pytest.mark.parametrize("other", ["gives back", "renews and gives back"])
def test_a_job_whose_orchestrator_died_is_not_cut_off_when_another_step_ends(
    cluster: KubeRayCluster, kubernetes: FakeKubernetes, ray: FakeCluster, other: str
) -> None:
    """Two steps side by side: nobody follows the first one any more, the second one goes on and ends."""
    died, second = cluster.of_run("/runs/died"), replace(cluster, linger_s=0.0).of_run("/runs/second")
    run_sync(died.connect())
    run_sync(second.connect())
    ray.jobs = {"job": "RUNNING"}
    _let_leases_end(kubernetes)
    if other == "renews and gives back":
        run_sync(second.keep())
    run_sync(second.release(True))
    next_one = leasing.cluster_at(str(kubernetes.kubeconfig), ray.address, "flow-2").of_run("/runs/next")
    run_sync(next_one.sweep())
    assert len(living(kubernetes)) == 1, "the job lives"
    run_sync(died.keep())
    assert leases.is_needed(annotations(kubernetes)), "its retry comes back to it"
    _let_leases_end(kubernetes)
    ray.jobs = {"job": "SUCCEEDED"}
    run_sync(next_one.sweep())
    assert living(kubernetes) == []


@pytest.mark.parametrize("leases_end", [False, True])
def test_a_step_for_which_it_is_not_ready_does_not_delete_it_under_another_one(
    cluster: KubeRayCluster, kubernetes: FakeKubernetes, leases_end: bool
) -> None:
    first, second = cluster.of_run("/runs/first"), replace(cluster, start_timeout_s=0.2).of_run("/runs/second")
    run_sync(first.connect())
    if leases_end:
        _let_leases_end(kubernetes)
    kubernetes.ready_after = None
    with pytest.raises(ClusterUnreachableError, match=r"is not ready after start_timeout_s=0\.2: "):
        run_sync(second.connect())
    assert len(living(kubernetes)) == 1
    run_sync(first.release(True))
    with pytest.raises(ClusterUnreachableError, match="and deleted"):
        run_sync(second.connect())
    assert living(kubernetes) == []


def _let_leases_end(kubernetes: FakeKubernetes) -> None:
    past = (datetime.now(UTC) - timedelta(seconds=1)).isoformat()
    given = annotations(kubernetes)
    given.update({name: past for name in given if name.startswith(leases.LEASE)})


def test_a_lease_is_renewed_as_long_as_somebody_follows(
    tmp_path: Path, kubernetes: FakeKubernetes, ray: FakeCluster
) -> None:
    short = leasing.cluster_at(str(kubernetes.kubeconfig), ray.address, lease_s=1.0)
    assert (short.keep_every_s, replace(short, workflow="").keep_every_s) == (0.25, None)
    own = short.of_run("/runs/a")
    run_sync(own.connect())
    _let_leases_end(kubernetes)
    run_sync(own.keep())
    assert leases.is_needed(annotations(kubernetes))


def test_a_moment_that_nobody_can_read_deletes_nothing() -> None:
    for moment in ("", "never", "2001-01-01T00:00:00", "2001-01-01"):
        assert not leases.is_over({leases.DELETE_AFTER: moment})
    assert leases.is_over({leases.DELETE_AFTER: "2001-01-01T00:00:00+00:00"})


def test_what_is_shared_is_one_of_two_words(cluster: KubeRayCluster) -> None:
    with pytest.raises(SpecError, match="share: got 'flow'; expected 'run' or 'workflow'"):
        replace(cluster, share="flow")  # type: ignore[arg-type]


def test_a_workflow_may_start_and_end_it_by_itself(
    tmp_path: Path, cluster: KubeRayCluster, kubernetes: FakeKubernetes, ray: FakeCluster
) -> None:
    title = run_sync(start_shared(cluster, print))
    assert title == cluster.of_run("/runs/a").title
    assert not leases.is_needed(annotations(kubernetes)), "it holds nothing: if no step comes, somebody deletes it"
    run_sync(start_shared(cluster, print))  # a retry
    do("train", cluster, tmp_path)
    assert kubernetes.methods().count("POST") == 1
    run_sync(end_shared(cluster))
    assert living(kubernetes) == []


def test_a_started_one_is_waited_for_in_its_queue_and_held_meanwhile(
    cluster: KubeRayCluster, kubernetes: FakeKubernetes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "QUEUE_POLL_S", 0.05)
    told: list[str] = []
    held: list[bool] = []
    kubernetes.admits_after = 8

    async def keep(self: KubeRayCluster) -> None:
        await real(self)
        held.append(leases.is_needed(annotations(kubernetes)))

    real = KubeRayCluster.keep
    monkeypatch.setattr(KubeRayCluster, "keep", keep)
    run_sync(start_shared(replace(cluster, queue="gpus"), told.append))
    assert len(told) == 1
    assert "waits in Kueue's queue gpus, 2 ahead" in told[0]
    assert held
    assert all(held)
    assert len(living(kubernetes)) == 1


@pytest.mark.parametrize("do_it", [lambda cluster: start_shared(cluster, print), end_shared])
def test_one_that_is_not_shared_is_not_started_or_ended_by_itself(cluster: KubeRayCluster, do_it: Any) -> None:
    for other in (LocalCluster(), replace(cluster, share="run", workflow=""), FallbackCluster([cluster])):
        with pytest.raises(SpecError, match="which the steps of a workflow do not share; expected a KubeRayCluster"):
            run_sync(do_it(other))


def test_a_cron_job_deletes_what_everybody_has_left(
    cluster: KubeRayCluster, kubernetes: FakeKubernetes, ray: FakeCluster
) -> None:
    run_sync(cluster.of_run("/runs/a").connect())
    (name,) = living(kubernetes)
    command = ["cluster", "sweep", "--kubeconfig", str(kubernetes.kubeconfig), "--address", ray.address]
    assert CliRunner().invoke(app, command).output == "nothing to delete\n"
    _let_leases_end(kubernetes)
    assert CliRunner().invoke(app, [*command, "--json"]).output.split() == ["{", '"deleted":', "[", f'"{name}"', "]", "}"]
    assert living(kubernetes) == []
