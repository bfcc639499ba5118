"""The blocks without a server: Prefect's own suite for blocks, and what they refuse."""

from pathlib import Path
from typing import Any

import pytest
from prefect.blocks.core import Block
from prefect.testing.standard_test_suites import BlockStandardTestSuite
from pydantic import SecretStr, ValidationError

from plugin_core import FallbackCluster, KubeRayCluster, KubeRaySettings
from plugin_core.clusters.base import LocalCluster
from plugin_core.clusters.base import RayCluster as CoreCluster
from plugin_core.clusters.find import find_cluster
from plugin_core.errors import SpecError
from plugin_core.runs.directory import RunDir
from prefect_integration import RayCluster, RayTrainJob
from prefect_integration.hooks import StepOfFlowRun
from prefect_integration.step import Step, cluster_data


@pytest.mark.parametrize("block", [RayCluster, RayTrainJob])
class TestBlocks(BlockStandardTestSuite):
    @pytest.fixture
    def block(self, request: pytest.FixtureRequest) -> type[Block]:
        return request.param

    # it downloads the logo
    test_has_a_valid_image = None


def test_the_block_gives_the_cores_cluster_with_its_secrets() -> None:
    block = RayCluster(
        address="https://ray.example:8265",
        token=SecretStr("word"),
        headers={"X-Who": "us"},
        ca_file="/etc/ca.pem",
        autoscaling=True,
        python="/venv/bin/python",
        ship_package=True,
    )
    cluster = block.get_cluster()
    assert isinstance(cluster, CoreCluster)
    assert (cluster.token, cluster.headers, cluster.verify) == ("word", {"X-Who": "us"}, "/etc/ca.pem")
    assert cluster.autoscaling
    assert cluster.ship_package
    assert cluster.driver_command() == ["/venv/bin/python", "-m", "plugin_core.driver"]
    assert "word" not in repr(block)
    assert "us" not in repr(block.headers)


def test_local_settings_give_the_embedded_cluster() -> None:
    assert RayCluster(local=True, num_cpus=8).get_cluster() == LocalCluster(8)


def test_fields_of_kuberay_give_a_cluster_of_each_runs_own() -> None:
    fields = {"name": "train", "namespace": "ml", "settings": {"image": "registry/train:1", "gpus": 1}}
    cluster = RayCluster(kuberay=fields, env_vars={"MLFLOW_TRACKING_TOKEN": "word"}).get_cluster()
    assert isinstance(cluster, KubeRayCluster)
    assert cluster.settings == KubeRaySettings("registry/train:1", gpus=1)
    assert (cluster.namespace, cluster.env_vars) == ("ml", {"MLFLOW_TRACKING_TOKEN": "word"})


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({}, "address: got nothing; expected one of address, a URL like http://host:8265, local=True for the"),
        ({"address": ""}, "address: got nothing"),
        ({"address": "http://x:1", "local": True}, "address: got address and local; expected one of"),
        ({"kuberay": {"name": "t", "sise": 1}}, "kuberay.sise: unknown field; expected name, manifest"),
        ({"kuberay": {"name": "t", "settings": {"workers": 2}}}, "kuberay.image: missing; expected a KubeRaySettings's"),
        ({"address": "ray://x:10001"}, "address: got 'ray://x:10001'; expected a URL like http://host:8265"),
    ],
)
def test_a_cluster_block_without_one_address_is_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        RayCluster(**fields)


def test_a_job_block_refuses_what_is_no_spec() -> None:
    with pytest.raises(ValidationError, match="num_workers"):
        RayTrainJob(spec={"scaling_config": {"num_workers": 0}})


@pytest.mark.parametrize("cluster", ["http://ray:8265", 8265])
def test_a_value_that_is_not_a_cluster_is_refused(cluster: Any) -> None:
    with pytest.raises(SpecError, match=r"cluster: got .*; expected a RayCluster block"):
        Step({"train_loop_per_worker": "a:b", "framework": "python"}, _train(), cluster, None, None)


@pytest.mark.parametrize("given", [{"address": "http://head:8265", "token": "hunter2"}, "https://me:hunter2@head:8265"])
def test_a_cluster_that_is_refused_is_shown_without_its_secrets(given: Any) -> None:
    with pytest.raises(SpecError, match=r"cluster: got .*; expected a RayCluster block") as refused:
        Step({"train_loop_per_worker": "a:b", "framework": "python"}, _train(), given, None, None)
    assert "hunter2" not in str(refused.value)


def test_a_hook_finds_an_inline_cluster_again_without_its_token() -> None:
    given = CoreCluster("http://ray:8265", token="word")
    data = cluster_data(given, given, "")
    assert data == {"address": "http://ray:8265", "verify": True, "python": "python"}
    assert cluster_data(None, LocalCluster(), "") == {}


def test_a_hook_finds_the_cluster_that_the_steps_of_a_flow_run_share() -> None:
    settings = KubeRaySettings(image="registry/train:1")
    shared = KubeRayCluster("team", settings=settings, share="workflow").of_workflow("flow-run")
    found = find_cluster(cluster_data(shared, shared, "flow-run"))
    assert found.of_run("/runs/a").identity == shared.of_run("/runs/b").identity


def test_the_steps_runtime_env_wins_over_the_blocks() -> None:
    block = RayCluster(local=True, runtime_env={"pip": ["a"], "env_vars": {"A": "block", "B": "block"}})
    spec = {"train_loop_per_worker": "a:b", "framework": "python", "runtime_env": {"env_vars": {"A": "step"}}}
    step = Step(spec, _train(), block, None, None)
    assert step._given.runtime_env == {"pip": ["a"], "env_vars": {"A": "step", "B": "block"}}


def test_a_list_of_clusters_is_the_order_of_preference(tmp_path: Path) -> None:
    given = [CoreCluster("http://spot:8265"), RayCluster(local=True)]
    step = Step({"train_loop_per_worker": "a:b", "framework": "python"}, _train(), given, None, None)
    assert step.cluster == FallbackCluster([given[0], LocalCluster()])
    data = cluster_data(given, step.cluster, "")
    assert [*data] == ["clusters", "after_s"]
    found = StepOfFlowRun(RunDir.at(str(tmp_path)), data).cluster()
    assert [each.identity for each in found.choices()] == [each.identity for each in step.cluster.choices()]


def test_blocks_in_a_list_have_the_same_runtime_env() -> None:
    given = [RayCluster(local=True, runtime_env={"pip": ["a"]}), RayCluster(address="http://ray:8265")]
    with pytest.raises(SpecError, match="cluster: got blocks with different runtime_envs in a list"):
        Step({"train_loop_per_worker": "a:b", "framework": "python"}, _train(), given, None, None)


@pytest.mark.parametrize("where", [{"clusters": [7]}, {"clusters": [{"clusters": [{}]}]}, {"clusters": []}])
def test_an_artifact_with_a_wrong_list_is_refused(tmp_path: Path, where: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        StepOfFlowRun(RunDir.at(str(tmp_path)), where).cluster()


def _train() -> Any:
    from plugin_core import TrainSpec

    return TrainSpec
