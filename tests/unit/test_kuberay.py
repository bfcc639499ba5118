"""KubeRayCluster against a fake of Kubernetes' API server (and a fake Ray cluster behind it)."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from devtools.chaos import wait_until
from plugin_core import KubeRayCluster, KubeRaySettings, run
from plugin_core.clusters import kuberay, kuberay_lease
from plugin_core.clusters.doctor import describe_cluster
from plugin_core.clusters.fake import FakeCluster
from plugin_core.clusters.find import find_cluster
from plugin_core.errors import ClusterRefusedError, ClusterUnreachableError, SpecError, StepCancelledError, UserCodeError
from plugin_core.runs.directory import RunDir
from plugin_core.specs import Limits
from plugin_core.supervisor import where
from plugin_core.supervisor.cancel import cancel
from plugin_core.supervisor.decide import Job
from plugin_core.supervisor.observer import Observer
from plugin_core.supervisor.supervisor import Supervisor, prepare, run_sync
from tests.support.fake_kubernetes import FakeKubernetes
from tests.support.fake_steps import spec_at

SETTINGS = KubeRaySettings(image="registry/train:1", workers=2, cpus=8, gpus=1, memory="32Gi", env_from_secret="s3")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kuberay, "POLL_S", 0.05)


@pytest.fixture
def cluster(kubernetes: FakeKubernetes, ray: FakeCluster) -> KubeRayCluster:
    return KubeRayCluster(
        "train", settings=SETTINGS, namespace="ml", kubeconfig=str(kubernetes.kubeconfig), address=ray.address
    )


def test_a_run_has_its_own_cluster_which_is_deleted_at_its_end(
    tmp_path: Path, cluster: KubeRayCluster, kubernetes: FakeKubernetes, ray: FakeCluster
) -> None:
    created: list[dict[str, Any]] = []

    def see(event: Any) -> None:
        created.extend(kubernetes.clusters.values())

    run(spec_at(tmp_path), cluster, see)
    assert kubernetes.methods() == ["POST", "DELETE"]
    body = created[0]
    assert body["metadata"]["name"].startswith("train-")
    assert len(body["metadata"]["name"]) <= 50
    assert body["metadata"]["annotations"]["ray-train-workflows/run"].endswith("/run")
    assert body["spec"]["authOptions"] == {"mode": "token"}, "the fake Ray takes the token of the Secret alone"
    (group,) = body["spec"]["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "1"}
    assert container["envFrom"] == [{"secretRef": {"name": "s3"}}]
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (2, 0, 2)

    run(spec_at(tmp_path), cluster)
    assert kubernetes.methods().count("POST") == 1, "a run that has its result needs no cluster"


def test_a_failed_run_keeps_its_cluster_for_a_while_and_a_retry_takes_it_up(
    tmp_path: Path, cluster: KubeRayCluster, kubernetes: FakeKubernetes, ray: FakeCluster
) -> None:
    keeping = replace(cluster, on_failure="keep", ttl_s=600.0)
    ray.plays = ["user_error", "succeed"]
    with pytest.raises(UserCodeError):
        run(spec_at(tmp_path), keeping)
    (kept,) = kubernetes.clusters.values()
    assert datetime.fromisoformat(kept["metadata"]["annotations"][kuberay_lease.DELETE_AFTER]) > datetime.now(UTC)
    run(spec_at(tmp_path), keeping)
    assert kubernetes.methods() == ["POST", "PUT", "PUT", "DELETE"], "made once; kept; taken up; deleted"


def test_the_next_run_deletes_a_cluster_whose_time_is_over(
    tmp_path: Path, cluster: KubeRayCluster, kubernetes: FakeKubernetes
) -> None:
    for name, hours, label in (("old", -1, "ray-train-workflows"), ("new", 1, "ray-train-workflows"), ("foreign", -1, "x")):
        moment = (datetime.now(UTC) + timedelta(hours=hours)).isoformat()
        metadata = {"name": name, "annotations": {kuberay_lease.DELETE_AFTER: moment}, "resourceVersion": "1"}
        metadata["labels"] = {"app.kubernetes.io/managed-by": label}
        kubernetes.clusters[name] = {"metadata": metadata, "spec": {}}
    run(spec_at(tmp_path), cluster)
    leaving = {name for name, each in kubernetes.clusters.items() if "deletionTimestamp" in each["metadata"]}
    assert leaving - {cluster.of_run(RunDir.of(spec_at(tmp_path)).uri).name} == {"old"}


def test_a_cluster_being_deleted_is_gone_before_the_next_is_created(
    cluster: KubeRayCluster, kubernetes: FakeKubernetes
) -> None:
    own = cluster.of_run("/runs/nightly")

    async def twice() -> None:
        await own.connect()
        await own.release(succeeded=False)
        assert not await own.lives()
        await own.connect()

    asyncio.run(twice())
    assert kubernetes.methods() == ["POST", "DELETE", "POST"]


def test_runs_at_once_have_different_clusters_and_callers_of_one_run_the_same(
    cluster: KubeRayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYTRAIN_CLUSTERS", cluster.address)
    monkeypatch.setenv("KUBECONFIG", cluster.kubeconfig or "")
    assert cluster.of_run("/runs/a").name != cluster.of_run("/runs/b").name
    assert cluster.of_run("/runs/a") == cluster.of_run("/runs/a").of_run("/runs/a")
    found = find_cluster(cluster.of_run("/runs/a").reference())
    assert found.identity == cluster.of_run("/runs/a").identity
    assert "secret" not in str(cluster.reference())
    assert len(replace(cluster, name="t" * 39).of_run("/runs/a").name) == 50


def test_a_cancel_makes_no_cluster(
    tmp_path: Path, cluster: KubeRayCluster, kubernetes: FakeKubernetes, ray: FakeCluster
) -> None:
    ray.plays = ["user_error"]
    with pytest.raises(UserCodeError):
        run(spec_at(tmp_path), cluster)
    assert kubernetes.methods() == ["POST", "DELETE"]
    cancel(RunDir.of(spec_at(tmp_path)), cluster)
    assert kubernetes.methods().count("POST") == 1


def test_a_cancel_while_a_cluster_starts_leaves_no_cluster_behind(
    tmp_path: Path, cluster: KubeRayCluster, kubernetes: FakeKubernetes
) -> None:
    kubernetes.ready_after = None

    async def started_and_given_up() -> None:
        task = asyncio.create_task(prepare(spec_at(tmp_path), cluster))
        await asyncio.to_thread(wait_until, lambda: kubernetes.clusters)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(started_and_given_up())
    cancel(RunDir.of(spec_at(tmp_path)), cluster)
    assert kubernetes.methods() == ["POST", "DELETE"]


@pytest.mark.parametrize(("waiting", "log"), [("ImagePullBackOff", ""), (None, "ray: command not found\n")])
def test_a_head_that_does_not_start_is_explained_and_deleted(
    cluster: KubeRayCluster, kubernetes: FakeKubernetes, waiting: str | None, log: str
) -> None:
    kubernetes.ready_after, kubernetes.waiting, kubernetes.head_log = None, waiting, log
    own = replace(cluster, start_timeout_s=0.3).of_run("/runs/nightly")
    with pytest.raises(ClusterUnreachableError) as told:
        asyncio.run(own.connect())
    assert f"RayCluster ml/{own.name} is not ready after start_timeout_s=0.3, and deleted" in told.value.message
    assert "ContainersNotReady" in told.value.message
    assert (waiting or log.strip()) in told.value.message
    assert kubernetes.methods() == ["POST", "DELETE"]


def test_a_head_that_is_no_longer_ready_is_not_deleted_under_a_job_that_may_be_alive(
    tmp_path: Path,
    cluster: KubeRayCluster,
    kubernetes: FakeKubernetes,
    ray: FakeCluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its dashboard has died, say, while the training goes on. Once the heartbeat is silent, another one is started."""
    monkeypatch.setattr(where, "CONNECT_S", 0.2)
    ray.plays = ["hang"]
    short = replace(cluster, start_timeout_s=0.6)
    rundir = run_sync(prepare(spec_at(tmp_path, limits=Limits(heartbeat_ttl_s=1.5)), short))
    run_sync(Supervisor(rundir, short).submit())
    kubernetes.ready_after = None
    observer = Observer(rundir, short, None)
    while not (look := run_sync(observer.look())).seen.heartbeat_silent:
        assert look.seen.job is Job.UNREACHABLE
        assert kubernetes.methods() == ["POST"]
    assert kubernetes.methods() == ["POST", "DELETE"]


def test_kubernetes_without_kuberay_is_reported(
    tmp_path: Path, cluster: KubeRayCluster, kubernetes: FakeKubernetes
) -> None:
    kubernetes.knows_kuberay = False
    with pytest.raises(ClusterRefusedError, match=r"has no rayclusters\.ray\.io/v1; expected one with KubeRay"):
        run(spec_at(tmp_path), cluster)


def test_a_missing_permission_is_named(tmp_path: Path, cluster: KubeRayCluster, kubernetes: FakeKubernetes) -> None:
    kubernetes.forbidden = {"POST"}
    with pytest.raises(ClusterRefusedError, match=r"Kubernetes forbids create rayclusters in namespace 'ml'.*cannot post"):
        run(spec_at(tmp_path), cluster)


def test_a_cluster_that_cannot_be_deleted_is_reported_and_the_result_kept(
    tmp_path: Path, cluster: KubeRayCluster, kubernetes: FakeKubernetes
) -> None:
    kubernetes.forbidden = {"DELETE"}
    said: list[str] = []
    result = run(spec_at(tmp_path), cluster, lambda event: said.append(event.text))
    assert result.run.attempt == 1
    assert any("the run's cluster could not be released: cluster: Kubernetes forbids delete" in text for text in said)


def test_a_kubernetes_that_does_not_answer_is_unreachable(tmp_path: Path, cluster: KubeRayCluster) -> None:
    config = Path(str(cluster.kubeconfig))
    config.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}]\n"
        "users: [{name: c, user: {}}]\ncontexts: [{name: c, context: {cluster: c, user: c}}]\n"
    )
    with pytest.raises(ClusterUnreachableError, match="Kubernetes does not respond to get rayclusters"):
        run(spec_at(tmp_path), cluster)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": "Train_1", "settings": SETTINGS}, "name: got 'Train_1'; expected up to 39 lower-case letters"),
        ({"name": "t" * 40, "settings": SETTINGS}, "expected up to 39 lower-case letters"),
        (
            {"name": "t", "address": "http://{head}:1"},
            "address: got 'http://{head}:1'; expected a URL with",
        ),
        ({"name": "t", "address": "http://{name.__class__}:1"}, "expected a URL with the placeholders"),
        (
            {"name": "t", "settings": SETTINGS, "manifest": {}},
            "manifest: got both manifest and settings",
        ),
        ({"name": "t", "manifest": {"kind": "RayJob"}}, "manifest: got kind 'RayJob'; expected one RayCluster"),
        ({"name": "t", "manifest": "none.yaml"}, "manifest: got 'none.yaml'; it cannot be read"),
        ({"name": "t", "settings": SETTINGS, "on_failure": "stay"}, "on_failure: got 'stay'; expected 'delete' or"),
    ],
)
def test_bad_input(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        KubeRayCluster(**fields)


def test_a_manifest_that_kubernetes_refuses_is_reported(
    tmp_path: Path, cluster: KubeRayCluster, kubernetes: FakeKubernetes
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("apiVersion: ray.io/v1\nkind: RayCluster\nspec: {workerGroupSpecs: []}\n")
    with pytest.raises(SpecError, match=r"manifest: Kubernetes rejects it: .*spec\.headGroupSpec: Required value"):
        run(spec_at(tmp_path), replace(cluster, settings=None, manifest=str(file)))


def test_describing_a_cluster_creates_none(cluster: KubeRayCluster, kubernetes: FakeKubernetes) -> None:
    assert asyncio.run(describe_cluster(cluster)) == "Kubernetes with KubeRay: 0 clusters of runs in namespace ml"
    assert kubernetes.methods() == []


def test_a_wrong_token_is_refused_and_leaves_no_cluster(
    tmp_path: Path, cluster: KubeRayCluster, kubernetes: FakeKubernetes
) -> None:
    kubernetes.token = "another"
    with pytest.raises(ClusterRefusedError):
        run(spec_at(tmp_path), cluster)
    assert kubernetes.methods() == ["POST", "DELETE"]


@pytest.mark.parametrize("content", ["token: [s3cr3t", "s3cr3t", "[s3cr3t]"])
def test_a_file_that_is_not_a_kubeconfig_is_reported_without_its_content(
    tmp_path: Path, cluster: KubeRayCluster, content: str
) -> None:
    file = tmp_path / "kubeconfig.txt"
    file.write_text(content)
    with pytest.raises(SpecError, match=r"kubeconfig: got '.*kubeconfig\.txt', which is not a kubeconfig") as refused:
        run(spec_at(tmp_path), replace(cluster, kubeconfig=str(file)))
    assert "s3cr3t" not in refused.value.message


@pytest.mark.parametrize("data", [{}, {"token": "c2VjcmV0"}, {"auth_token": "no base64"}, {"auth_token": "/w=="}])
def test_a_secret_without_a_token_is_refused_and_does_not_stop_a_sweep(
    tmp_path: Path, cluster: KubeRayCluster, kubernetes: FakeKubernetes, data: dict[str, str]
) -> None:
    kubernetes.secret = data
    with pytest.raises(ClusterRefusedError, match=r"cluster: Secret ml/train-\w+ has no token; expected one as auth_token"):
        run(spec_at(tmp_path), replace(cluster, on_failure="keep"))
    (name,) = kubernetes.clusters
    abandoned = {kuberay_lease.lease_of("/gone"): "2026-01-01T00:00:00+00:00"}
    kubernetes.clusters[name]["metadata"]["annotations"] |= abandoned
    assert asyncio.run(replace(cluster, name="other").sweep()) == [], "it may have a live job"
    assert "deletionTimestamp" not in kubernetes.clusters[name]["metadata"]


def test_a_missing_kubeconfig_is_reported(tmp_path: Path, cluster: KubeRayCluster) -> None:
    with pytest.raises(SpecError, match="kubeconfig: got '/nowhere'"):
        run(spec_at(tmp_path), replace(cluster, kubeconfig="/nowhere"))


def test_a_cancelled_step_releases_as_a_failed_one(
    tmp_path: Path, cluster: KubeRayCluster, kubernetes: FakeKubernetes, ray: FakeCluster
) -> None:
    ray.plays = ["hang"]
    rundir = RunDir.of(spec_at(tmp_path))

    async def cancelled() -> None:
        from plugin_core.supervisor.cancel import acancel
        from plugin_core.supervisor.supervisor import arun

        task = asyncio.create_task(arun(spec_at(tmp_path), cluster))
        await asyncio.to_thread(wait_until, lambda: ray.jobs)
        await acancel(rundir, cluster)
        with pytest.raises(StepCancelledError):
            await task

    asyncio.run(cancelled())
    assert not any("deletionTimestamp" not in each["metadata"] for each in kubernetes.clusters.values())
