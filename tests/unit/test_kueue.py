"""Clusters that Kueue holds back, or takes away, on a fake of Kubernetes: queued is not failed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from devtools.chaos import Running, wait_until
from plugin_core import KubeRayCluster, KubeRaySettings, run
from plugin_core.clusters import kuberay
from plugin_core.clusters.fake import FakeCluster
from plugin_core.errors import SpecError, StepCancelledError
from plugin_core.supervisor import timings
from plugin_core.supervisor.cancel import acancel
from plugin_core.supervisor.supervisor import Supervisor, prepare, run_sync
from tests.support.fake_kubernetes import FakeKubernetes
from tests.support.fake_steps import spec_at

SETTINGS = KubeRaySettings(image="registry/train:1", workers=2)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kuberay, "POLL_S", 0.05)
    monkeypatch.setattr(timings, "POLL_MAX_S", 0.2)


@pytest.fixture
def cluster(kubernetes: FakeKubernetes, ray: FakeCluster) -> KubeRayCluster:
    where: dict[str, Any] = {"kubeconfig": str(kubernetes.kubeconfig), "address": ray.address, "namespace": "ml"}
    return KubeRayCluster("train", settings=SETTINGS, queue="gpus", **where)


def told(events: list[Any]) -> list[str]:
    return [event.text for event in events if event.kind == "state" and event.text.startswith("queued")]


@pytest.mark.slow
def test_a_run_waits_in_the_queue_however_long_and_says_where(
    tmp_path: Path, cluster: KubeRayCluster, kubernetes: FakeKubernetes
) -> None:
    events: list[Any] = []
    kubernetes.admits_after = 12
    run(spec_at(tmp_path), replace(cluster, start_timeout_s=0.2), events.append)
    (line,) = told(events)
    assert line.startswith("queued: RayCluster ml/train-")
    assert line.endswith(" waits in Kueue's queue gpus, 2 ahead")
    assert kubernetes.methods() == ["POST", "DELETE"]


def test_without_kueues_visibility_the_place_is_not_told(
    tmp_path: Path, cluster: KubeRayCluster, kubernetes: FakeKubernetes
) -> None:
    events: list[Any] = []
    kubernetes.ahead = None
    run(spec_at(tmp_path), cluster, events.append)
    assert told(events)[-1].endswith("waits in Kueue's queue gpus")


def test_an_operator_can_defer_while_its_cluster_is_queued(
    tmp_path: Path, cluster: KubeRayCluster, kubernetes: FakeKubernetes
) -> None:
    kubernetes.admits_after = None
    rundir = run_sync(prepare(spec_at(tmp_path), cluster))
    assert run_sync(Supervisor(rundir, cluster).submit()) is None
    assert rundir.receipts() == []
    kubernetes.admits_after = 0
    assert run_sync(Supervisor(rundir, cluster, since_attempt=0).run()).run.attempt == 1
    assert kubernetes.methods() == ["POST", "DELETE"]


def test_a_cancel_in_the_queue_leaves_no_cluster(
    tmp_path: Path, cluster: KubeRayCluster, kubernetes: FakeKubernetes, ray: FakeCluster
) -> None:
    kubernetes.admits_after = None
    cluster = replace(cluster, on_failure="keep")  # to look at what failed there
    running = Running(spec_at(tmp_path), cluster)
    wait_until(lambda: told(running.events))
    assert run_sync(acancel(running.rundir, cluster)) == "cancelled"
    assert isinstance(running.error(), StepCancelledError)
    wait_until(lambda: not [each for each in kubernetes.clusters.values() if "deletionTimestamp" not in each["metadata"]])
    assert ray.jobs == {}


def test_a_cluster_that_kueue_takes_away_is_waited_for_and_the_run_goes_on(
    tmp_path: Path, cluster: KubeRayCluster, kubernetes: FakeKubernetes, ray: FakeCluster
) -> None:
    ray.plays = ["hang"]
    running = Running(spec_at(tmp_path), cluster)
    wait_until(lambda: ray.jobs)
    kubernetes.admits_after = None
    (found,) = kubernetes.clusters.values()
    found["spec"]["suspend"] = True
    ray.answering = False
    wait_until(lambda: len(told(running.events)) == 2)
    assert not running.done()
    assert running.rundir.receipts() == [1], "no attempt begins in the queue"
    ray.jobs.clear()
    ray.plays, ray.session_name, ray.answering, kubernetes.admits_after = ["succeed"], "session_fake_2", True, 0
    assert running.result().run.attempt == 2
    assert kubernetes.methods() == ["POST", "DELETE"], "the same cluster"


def test_a_cluster_of_settings_has_no_autoscaler_in_a_queue(cluster: KubeRayCluster) -> None:
    body = cluster._body()
    assert body is not None
    assert body["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "gpus"
    assert (body["spec"]["suspend"], body["spec"]["enableInTreeAutoscaling"]) == (True, False)
    (group,) = body["spec"]["workerGroupSpecs"]
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (2, 2, 2)
    assert "autoscalerOptions" not in body["spec"]


def test_a_manifest_that_kueue_would_not_admit_is_refused(cluster: KubeRayCluster) -> None:
    manifest = SETTINGS.manifest()
    with pytest.raises(SpecError, match=r"manifest\.spec\.enableInTreeAutoscaling: got true with a queue"):
        replace(cluster, settings=None, manifest=manifest)
    elastic = {**manifest, "metadata": {"annotations": {"kueue.x-k8s.io/elastic-job": "true"}}}
    assert replace(cluster, settings=None, manifest=elastic).queue == "gpus"


# ---- what KubeRay's own schema says

SCHEMA = Path(__file__).parents[1] / "support" / "schemas" / "raycluster_v1.json"


@pytest.mark.parametrize("queue", [None, "gpus"])
@pytest.mark.parametrize("share", ["run", "workflow"])
def test_what_is_generated_matches_kuberays_schema(cluster: KubeRayCluster, queue: str | None, share: Any) -> None:
    settings = replace(SETTINGS, gpus=1, env_from_secret="s3", service_account="trainer")
    made = replace(cluster, queue=queue, share=share, settings=settings).of_workflow("flow-1").of_run("/runs/nightly")
    jsonschema.validate(made._body(), json.loads(SCHEMA.read_text()))


@pytest.mark.parametrize(
    ("field", "words"),
    [({"suspended": True}, "'suspended' was unexpected"), ({"suspend": "yes"}, "is not of type 'boolean'")],
)
def test_the_schema_refuses_what_the_api_server_would_drop_or_refuse(
    cluster: KubeRayCluster, field: dict[str, Any], words: str
) -> None:
    body = cluster._body()
    assert body is not None
    with pytest.raises(jsonschema.ValidationError, match=words):
        jsonschema.validate({**body, "spec": {**body["spec"], **field}}, json.loads(SCHEMA.read_text()))
