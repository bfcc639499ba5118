"""The frameworks on GPUs: `make test-gpu`. Where there is no GPU they are skipped."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import torch

from example_flows.frameworks import NAMES, example, installed
from plugin_core import RunConfig, ScalingConfig, TorchConfig, TrainSpec, execute
from plugin_core.runs.directory import RunDir
from plugin_core.runs.journal import read_reports
from plugin_core.specs.frameworks import FRAMEWORKS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
]


@pytest.fixture(scope="module")
def here() -> Iterator[None]:
    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def on_gpu(config: dict[str, Any]) -> None:
    """A loop that must have had something on the GPU."""
    module, _, name = config["loop"].partition(":")
    getattr(importlib.import_module(module), name)(config["config"])
    assert torch.cuda.max_memory_allocated() > 0, "nothing was on the GPU"


def spec_on_gpu(name: str, folder: Path, **fields: Any) -> TrainSpec:
    spec = example(name).SPEC
    loop = fields.pop("loop", spec.train_loop_per_worker)
    config = {**spec.train_loop_config, "epochs": 3}
    if spec.deepspeed_config is not None:
        config["deepspeed_config"] = spec.deepspeed_config
    update = {
        "scaling_config": ScalingConfig(num_workers=1, use_gpu=True),
        "run_config": RunConfig(name=name, storage_path=str(folder)),
        "deepspeed_config": None,
        "train_loop_per_worker": on_gpu,
        "train_loop_config": {"loop": loop, "config": config},
    }
    return spec.model_copy(update={**update, **fields})


def check(spec: TrainSpec, name: str) -> None:
    result = execute(spec)
    losses = [report["metrics"]["loss"] for report in read_reports(RunDir.at(result.run.uri))]
    assert losses[-1] < losses[0]
    scores = example(name).evaluate(result.checkpoint.to_ray())
    assert scores == {key: pytest.approx(result.metrics[key], abs=5e-3) for key in scores}


@pytest.mark.parametrize("name", [name for name in NAMES if FRAMEWORKS[example(name).SPEC.framework].module == "torch"])
def test_trains_on_a_gpu(name: str, tmp_path: Path, here: None) -> None:
    if name not in installed():
        pytest.skip(f"{name} is not installed")
    check(spec_on_gpu(name, tmp_path), name)


def jax_on_gpu(config: dict[str, Any]) -> None:
    """The loop of the example, whose devices must be GPUs."""
    import jax

    assert {device.platform for device in jax.devices()} == {"gpu"}
    example("jax").train_loop(config)


def test_jax_on_a_gpu(tmp_path: Path, here: None) -> None:
    if "jax" not in installed():
        pytest.skip("jax is not installed")
    spec = example("jax").SPEC
    update = {
        "train_loop_per_worker": jax_on_gpu,
        "scaling_config": ScalingConfig(num_workers=1, use_gpu=True),
        "run_config": RunConfig(name="jax", storage_path=str(tmp_path)),
    }
    check(spec.model_copy(update=update), "jax")


def test_nccl_on_all_gpus(tmp_path: Path, here: None) -> None:
    scaling = ScalingConfig(num_workers=torch.cuda.device_count(), use_gpu=True)
    spec = spec_on_gpu("torch", tmp_path, scaling_config=scaling, torch_config=TorchConfig(backend="nccl"))
    check(spec, "torch")


def test_two_workers_share_a_gpu(tmp_path: Path, here: None) -> None:
    """NCCL refuses two ranks on one device; gloo takes them."""
    scaling = ScalingConfig(num_workers=2, use_gpu=True, resources_per_worker={"CPU": 1, "GPU": 0.5})
    spec = spec_on_gpu("torch", tmp_path, scaling_config=scaling, torch_config=TorchConfig(backend="gloo"))
    check(spec, "torch")


def test_xgboost_on_cuda(tmp_path: Path, here: None) -> None:
    if "xgboost" not in installed():
        pytest.skip("xgboost is not installed")
    import xgboost

    if not xgboost.build_info().get("USE_CUDA"):
        pytest.skip("this XGBoost is built for CPUs alone")
    spec = example("xgboost").SPEC
    update = {
        "params": {**spec.params, "device": "cuda"},
        "scaling_config": ScalingConfig(num_workers=1, use_gpu=True),
        "run_config": RunConfig(name="xgboost", storage_path=str(tmp_path)),
    }
    result = execute(spec.model_copy(update=update))
    assert result.metrics["test-logloss"] < 0.3
