"""The frameworks by name. Each module turns a TrainSpec into a Ray trainer and is imported only when used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plugin_core.specs.extras import require
from plugin_core.specs.frameworks import framework

if TYPE_CHECKING:
    from plugin_core.specs import TrainSpec


@dataclass(frozen=True)
class TrainerInputs:
    """Arguments common to Ray's trainers. `wrap` is already applied to `train_loop`; a framework that has its own loop
    applies it to that."""

    train_loop: Callable[..., Any] | None
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
    train_loop_config: dict[str, Any]
    scaling_config: Any
    run_config: Any
    datasets: dict[str, Any]
    dataset_config: Any = None
    validation_config: Any = None
    #: makes the framework's own callbacks, in each worker
    framework_callbacks: Sequence[Callable[[], Any]] = ()

    def for_trainer(self) -> dict[str, Any]:
        """The keyword arguments of all Ray trainers, except the loop and its config."""
        names = ("scaling_config", "run_config", "datasets", "dataset_config", "validation_config")
        return {name: getattr(self, name) for name in names}


def worker_environment(spec: TrainSpec) -> dict[str, str]:
    """Environment variables that workers need before the framework is imported."""
    environment = {}
    if spec.framework == "tensorflow":
        from plugin_core.specs import TensorflowConfig

        environment["TF_USE_LEGACY_KERAS"] = str(int((spec.tensorflow_config or TensorflowConfig()).legacy_keras))
    if spec.framework == "jax":
        environment["JAX_PLATFORMS"] = "cuda" if spec.scaling_config.use_gpu else "cpu"
    if "deepspeed_config" in framework(spec.framework).options and not spec.scaling_config.use_gpu:
        environment["DS_ACCELERATOR"] = "cpu"
    return environment


def replicas_are_apart(spec: TrainSpec) -> bool:
    """Whether each worker has its own process group, and joins the others through torchft."""
    return spec.torch_config is not None and spec.torch_config.fault_tolerance == "torchft"


def require_packages(spec: TrainSpec) -> None:
    """Raise SpecError if a package of the spec's framework is missing here or too old."""
    for package, oldest in framework(spec.framework).packages.items():
        require("framework", spec.framework, package, spec.framework, oldest)
    if spec.framework == "tensorflow" and worker_environment(spec)["TF_USE_LEGACY_KERAS"] == "1":
        require("tensorflow_config.legacy_keras", True, "tf_keras", "tensorflow")
    if replicas_are_apart(spec):
        require("torch_config.fault_tolerance", "torchft", "torchft", "torchft")
    if spec.deepspeed_config is not None:
        require("deepspeed_config", spec.deepspeed_config, "deepspeed", "deepspeed")


def build_trainer(spec: TrainSpec, inputs: TrainerInputs) -> Any:
    """Build the framework's Ray trainer without starting it."""
    require_packages(spec)
    module = framework(spec.framework).module
    ours = f"plugin_core.driver.train.frameworks.{module}"
    return importlib.import_module(module if "." in module else ours).build(spec, inputs)
