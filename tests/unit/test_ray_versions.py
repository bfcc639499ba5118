"""A step that needs a later Ray than the cluster has is refused before it is submitted, and names the field."""

import os
import sys
from typing import Any

import pytest

from plugin_core import RunConfig, TrainSpec, TuneSpec, run
from plugin_core.clusters.fake import FakeCluster
from plugin_core.driver.train.frameworks.torch import _torch_config
from plugin_core.driver.train.step import _set_ray_defaults
from plugin_core.errors import SpecError
from plugin_core.loops.preemption import PreemptionNotice
from plugin_core.runs.directory import RunDir
from plugin_core.specs.common import FailureConfig, NcclHang
from plugin_core.specs.ray_versions import OLDEST, SINCE, check_ray
from plugin_core.specs.train import TorchConfig


def training(storage: str = "runs", failure_policy: Any = None, **failures: Any) -> TrainSpec:
    run_config = RunConfig(name="a", storage_path=storage, failure_config=FailureConfig(**failures))
    return TrainSpec(framework="python", train_loop_per_worker="m:f", run_config=run_config, failure_policy=failure_policy)


@pytest.mark.parametrize(
    ("given", "version", "words"),
    [
        (
            {"preemption_grace_s": 30.0},
            "2.59.0",
            r"preemption_grace_s: got 30.0 for .* Ray 2.59.0; expected Ray 2.60",
        ),
        (
            {"relax_collectives_on_preemption": True},
            "2.58.1",
            r"relax_collectives_on_preemption: got True .* Ray 2.60",
        ),
        ({"max_preemption_failures": 2}, "2.57.0", "max_preemption_failures: got 2 .* expected Ray 2.58 or newer"),
        ({"nccl_hang": NcclHang()}, "2.59.0", r"nccl_hang: got .* expected Ray 2.60 or newer"),
        ({}, "2.55.1", r"cluster: got one with Ray 2.55.1; expected Ray 2.56 or newer"),
    ],
)
def test_what_a_ray_lacks_is_named(given: dict[str, Any], version: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        check_ray(training(**given), version)
    check_ray(training(**given), "2.60.0")


def test_the_defaults_need_nothing_and_a_build_of_ones_own_is_believed() -> None:
    check_ray(training(), f"{OLDEST}.0")
    check_ray(training(max_preemption_failures=2), "our-fork")


def test_a_policy_and_the_training_of_a_search_count_too() -> None:
    with pytest.raises(SpecError, match=r"failure_policy.preempted: got .* expected Ray 2.58"):
        check_ray(training(failure_policy={"preempted": {"action": "give_up"}}), "2.57.1")
    space = {"train_loop_config": {"lr": {"uniform": [0, 1]}}}
    search = TuneSpec(train=training(preemption_grace_s=5.0), param_space=space, metric="loss", mode="min")
    with pytest.raises(SpecError, match=r"preemption_grace_s: got 5.0"):
        check_ray(search, "2.59.0")


def test_every_field_that_came_later_is_a_field() -> None:
    for path in SINCE:
        fields: Any = TrainSpec
        for name in path.split("."):
            assert name in fields.model_fields, path
            fields = next(
                (each for each in _models(fields.model_fields[name].annotation)), fields.model_fields[name].annotation
            )


def _models(annotation: Any) -> list[Any]:
    return [each for each in (annotation, *getattr(annotation, "__args__", ())) if hasattr(each, "model_fields")]


def test_nothing_is_submitted_to_a_cluster_whose_ray_is_too_old(tmp_path: Any) -> None:
    spec = training(str(tmp_path), preemption_grace_s=30.0)
    with (
        FakeCluster(ray_version="2.59.0") as cluster,
        pytest.raises(SpecError, match=r"preemption_grace_s: got 30.0 for .* Ray 2.59.0"),
    ):
        run(spec, cluster)
    assert RunDir.of(spec).receipts() == []


def test_the_hang_detection_of_nccl_becomes_rays_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    hang = NcclHang(action="fail", confirm_duration_s=30.0, min_poll_interval_s=2.0)
    _set_ray_defaults(training(nccl_hang=hang))
    assert {name: value for name, value in os.environ.items() if "NCCL" in name} == {
        "RAY_TRAIN_ENABLE_NCCL_HANG_DETECTOR": "1",
        "RAY_TRAIN_NCCL_RAS_ACTION": "fail",
        "RAY_TRAIN_NCCL_RAS_CONFIRM_DURATION_S": "30.0",
        "RAY_TRAIN_NCCL_RAS_MIN_POLL_INTERVAL_S": "2.0",
    }


def test_a_ray_without_torchft_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray.train.v2.torch.torchft_config", None)
    with pytest.raises(SpecError, match=r"torch_config.fault_tolerance: got 'torchft', which Ray .* does not have"):
        _torch_config(TorchConfig(fault_tolerance="torchft"))


def test_a_notice_of_a_preemption_needs_a_ray_that_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray.train

    monkeypatch.delattr(ray.train, "get_preemption_info")
    with pytest.raises(SpecError, match=r"PreemptionNotice: got Ray .* expected Ray 2.58 or newer"):
        PreemptionNotice().came()
