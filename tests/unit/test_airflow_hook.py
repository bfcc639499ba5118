"""What an Airflow connection becomes."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("airflow")

from airflow_provider.hooks import RayJobsHook
from plugin_core import FallbackCluster, KubeRayCluster, KubeRaySettings, LocalCluster, RayCluster
from plugin_core.clusters.fake import FakeCluster
from plugin_core.errors import SpecError
from tests.support.airflow_tasks import TOKEN
from tests.support.airflow_tasks import fake as fake


def connect(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> RayJobsHook:
    monkeypatch.setenv("AIRFLOW_CONN_C", json.dumps({"conn_type": "rayjobs", **fields}))
    return RayJobsHook("c")


def test_a_connection_becomes_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    assert connect(monkeypatch, host="h").get_cluster() == RayCluster("http://h:8265")
    whole = connect(
        monkeypatch,
        host="h",
        port=99,
        schema="https",
        password=TOKEN,
        extra={
            **{"verify": "/ca.pem", "headers": '{"X": "y"}', "autoscaling": True},
            **{"ship_package": "true", "namespace": "prod"},
        },
    )
    expected = RayCluster("https://h:99", TOKEN, {"X": "y"}, "/ca.pem", autoscaling=True, ship_package=True)
    assert whole.get_cluster() == expected
    assert whole.get_place().namespace == "prod"
    assert connect(monkeypatch, host="https://h/ray").get_cluster() == RayCluster("https://h/ray")
    assert asyncio.run(whole.aget_cluster()) == whole.get_cluster()


def test_a_connection_with_kuberay_becomes_a_cluster_of_each_runs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    kuberay = {"name": "train", "settings": {"image": "registry/train:1"}, "on_failure": "keep", "ttl_s": 600}
    hook = connect(monkeypatch, password=TOKEN, extra={"kuberay": json.dumps(kuberay), "namespace": "prod"})
    settings = KubeRaySettings("registry/train:1")
    assert hook.get_cluster() == KubeRayCluster("train", settings=settings, on_failure="keep", ttl_s=600, token=TOKEN)
    assert hook.get_place().namespace == "prod"


def test_the_tasks_of_a_dag_run_share_a_cluster_and_other_dag_runs_have_another(monkeypatch: pytest.MonkeyPatch) -> None:
    kuberay = {"name": "team", "settings": {"image": "registry/train:1"}, "share": "workflow"}

    def name(dag_id: str, run_id: str, task: str) -> str:
        of = SimpleNamespace(dag_id=dag_id, run_id=run_id)
        extra = {"kuberay": json.dumps(kuberay), "namespace": "prod"}
        connect(monkeypatch, extra=extra)
        hook = RayJobsHook("c", of=of)
        assert asyncio.run(hook.aget_cluster()) == hook.get_cluster()
        found: str = hook.get_cluster().of_run(f"/runs/{task}").name  # type: ignore[attr-defined]
        return found

    first = name("d", "r1", "train")
    assert first == name("d", "r1", "evaluate")
    assert first not in (name("d", "r2", "train"), name("e", "r1", "train"))


def test_a_connection_as_uri_becomes_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_C", f"rayjobs://:{TOKEN}@h:8265/?verify=false")
    assert RayJobsHook("c").get_cluster() == RayCluster("http://h:8265", TOKEN, verify=False)


def test_without_a_connection_the_default_is_the_local_cluster_and_another_id_is_refused() -> None:
    assert RayJobsHook(None).get_cluster() == LocalCluster()
    assert RayJobsHook().get_cluster() == LocalCluster()
    assert asyncio.run(RayJobsHook().aget_cluster()) == LocalCluster()
    with pytest.raises(SpecError, match="ray_conn_id: got 'prod', which does not exist"):
        RayJobsHook("prod").get_cluster()


def test_a_connection_without_host_or_with_odd_headers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError, match="ray_conn_id: got 'c', which has no host"):
        connect(monkeypatch).get_cluster()
    with pytest.raises(SpecError, match="headers: got no JSON object in the connection's extra"):
        connect(monkeypatch, host="h", extra={"headers": "[1"}).get_cluster()


def test_the_connection_test_says_what_is_there_or_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, fake: FakeCluster
) -> None:
    good, said = RayJobsHook("fake").test_connection()
    assert good, said
    assert said.endswith("1 nodes, 16 CPUs, 0 GPUs")
    good, said = connect(monkeypatch, host=fake.address, password="wrong").test_connection()
    assert not good
    assert "returned 401 for the given token" in said


def test_values_from_a_connection_are_masked_in_airflows_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a task and in a trigger: a job may print it, and the task's log shows what a job prints."""
    from airflow.sdk.log import redact

    for number, look in enumerate((RayJobsHook.get_cluster, lambda hook: asyncio.run(hook.aget_cluster()))):
        key, word, header = (f"{what}-{number}-hunter2" for what in ("key", "word", "header"))
        extra = {"env_vars": {"KEY": key}, "env_files": {"FILE": f"token = {word}\n"}, "headers": {"X": header}}
        look(connect(monkeypatch, host="h", extra=extra))
        assert redact(f"the job prints {key}, {word} and {header}") == "the job prints ***, *** and ***"


def test_a_list_of_connections_becomes_clusters_in_the_order_of_preference(monkeypatch: pytest.MonkeyPatch) -> None:
    spot = {"conn_type": "rayjobs", "host": "spot", "extra": {"after_s": "45", "storage_path": "s3://runs"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPOT", json.dumps(spot))
    monkeypatch.setenv("AIRFLOW_CONN_SURE", json.dumps({"conn_type": "rayjobs", "host": "sure"}))
    hook = RayJobsHook(["spot", "sure", None])
    clusters = [RayCluster("http://spot:8265"), RayCluster("http://sure:8265"), LocalCluster()]
    assert hook.get_cluster() == FallbackCluster(clusters, after_s=45.0) == asyncio.run(hook.aget_cluster())
    assert hook.get_place().storage_path == "s3://runs"
    assert RayJobsHook(["sure"]).get_cluster() == clusters[1]


@pytest.mark.parametrize("given", [[], [1], {"a": 1}, 7])
def test_what_is_no_list_of_connections_is_refused(given: Any) -> None:
    with pytest.raises(SpecError, match=r"ray_conn_id: got .*; expected the id of a connection, or a list of ids"):
        RayJobsHook(given).get_place()


@pytest.mark.parametrize("given", ["soon", True, [5], 10**400])
def test_a_time_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, given: Any) -> None:
    with pytest.raises(SpecError, match=r"after_s: got .* in the connection's extra; expected seconds"):
        connect(monkeypatch, host="h", extra={"after_s": given}).get_place()
