"""A whole step on a "RayCluster of its own": Kubernetes is a fake, the Ray behind it is real."""

import sys
from pathlib import Path

import pytest

from devtools.chaos import Trail, spec_at
from plugin_core import KubeRayCluster, KubeRaySettings, run
from plugin_core.clusters.local_head import Head
from tests.support.fake_kubernetes import FakeKubernetes


@pytest.mark.slow
def test_a_step_runs_on_its_own_cluster_with_the_token_from_a_secret(tmp_path: Path, head: Head) -> None:
    trail = Trail(tmp_path / "trail.jsonl")
    with FakeKubernetes(tmp_path, token=head.token) as kubernetes:
        cluster = KubeRayCluster(
            "train",
            settings=KubeRaySettings(image="registry/train:1", workers=2),
            kubeconfig=str(kubernetes.kubeconfig),
            address=head.address,
            python=sys.executable,
        )
        result = run(spec_at(tmp_path, trail.file), cluster)
        assert result.metrics["total"] == sum(range(12))
        assert kubernetes.methods() == ["POST", "DELETE"]
