"""The frameworks, by name. Each module turns a TrainSpec into a Ray trainer and is imported only where it runs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from plugin_core.packages import require

if TYPE_CHECKING:
    from plugin_core.specs import TrainSpec


@dataclass(frozen=True)
class Framework:
    """`packages` must import on the cluster, each in its oldest version or newer; the extra of the framework's name
    installs them. `options` are its own spec fields. `module`, of this package, builds its trainer. `join`: what makes
    a loop's workers one world, said to whom they are not."""

    name: str
    module: str
    packages: dict[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    declarative: bool = False
    join: str = ""


@dataclass(frozen=True)
class TrainerInputs:
    """What every trainer of Ray takes, ready made. `wrap` is around `train_loop` already, and goes around a loop of the
    framework's own."""

    train_loop: Callable[..., Any] | None
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
    train_loop_config: dict[str, Any]
    scaling_config: Any
    run_config: Any
    datasets: dict[str, Any]
    dataset_config: Any = None

    def for_trainer(self) -> dict[str, Any]:
        """The keyword arguments that all of Ray's trainers have, but for the loop and its config."""
        names = ("scaling_config", "run_config", "datasets", "dataset_config")
        return {name: getattr(self, name) for name in names}


_TORCH = {"torch": "2.6"}
_ON_TORCH = ("torch_config", "deepspeed_config")
_TREES = ("params", "label_column", "num_boost_round", "early_stopping_rounds", "checkpoint_frequency")
FRAMEWORKS = {
    framework.name: framework
    for framework in (
        Framework("torch", "torch", _TORCH, ("torch_config",), join="model = ray.train.torch.prepare_model(model)"),
        Framework(
            "lightning",
            "torch",
            {"lightning": "2.5", **_TORCH},
            _ON_TORCH,
            join="Trainer(strategy=RayDDPStrategy(), plugins=[RayLightningEnvironment()]), both of ray.train.lightning",
        ),
        Framework(
            "transformers",
            "torch",
            {"transformers": "5.0", "accelerate": "1.10", **_TORCH},
            _ON_TORCH,
            join="TrainingArguments(use_cpu=True) where there is no GPU",
        ),
        Framework(
            "accelerate",
            "torch",
            {"accelerate": "1.10", **_TORCH},
            _ON_TORCH,
            join="Accelerator(cpu=True) where there is no GPU, and accelerator.prepare(model, …)",
        ),
        Framework(
            "deepspeed",
            "torch",
            {"deepspeed": "0.18", **_TORCH},
            _ON_TORCH,
            join='deepspeed.initialize(model=model, config=config["deepspeed_config"], …)',
        ),
        Framework(
            "tensorflow",
            "tensorflow",
            {"tensorflow": "2.19"},
            ("tensorflow_config",),
            join="with tf.distribute.MultiWorkerMirroredStrategy().scope(): around the model",
        ),
        Framework("xgboost", "xgboost", {"xgboost": "3.2"}, _TREES, declarative=True),
        Framework(
            "lightgbm",
            "lightgbm",
            {"lightgbm": "4.5"},
            _TREES,
            declarative=True,
            join='params = {"tree_learner": "data_parallel", "pre_partition": True, **ray.train.lightgbm'
            ".get_network_params(), …}",
        ),
        Framework("horovod", "horovod", {"horovod": "0.28", **_TORCH}, join="hvd.init()"),
        Framework("jax", "jax", {"jax": "0.6"}, join="computing over jax.devices(), not jax.local_devices()"),
        # no framework: plain Python workers, for scikit-learn, numpy or a framework of the user's own
        Framework("python", "python"),
    )
}


def worker_environment(spec: TrainSpec) -> dict[str, str]:
    """Variables that the workers must have before the framework is imported."""
    environment = {}
    if spec.framework == "tensorflow":
        from plugin_core.specs import TensorflowConfig

        environment["TF_USE_LEGACY_KERAS"] = str(int((spec.tensorflow_config or TensorflowConfig()).legacy_keras))
    if spec.framework == "jax":
        environment["JAX_PLATFORMS"] = "cuda" if spec.scaling_config.use_gpu else "cpu"
    if "deepspeed_config" in FRAMEWORKS[spec.framework].options and not spec.scaling_config.use_gpu:
        environment["DS_ACCELERATOR"] = "cpu"
    return environment


def require_packages(spec: TrainSpec) -> None:
    """Raise SpecError where a package of the spec's framework is missing here, or too old."""
    for package, oldest in FRAMEWORKS[spec.framework].packages.items():
        require("framework", spec.framework, package, spec.framework, oldest)
    if spec.framework == "tensorflow" and worker_environment(spec)["TF_USE_LEGACY_KERAS"] == "1":
        require("tensorflow_config.legacy_keras", True, "tf_keras", "tensorflow")
    if spec.deepspeed_config is not None:
        require("deepspeed_config", spec.deepspeed_config, "deepspeed", "deepspeed")


def build_trainer(spec: TrainSpec, inputs: TrainerInputs) -> Any:
    """The framework's Ray trainer, not yet started."""
    require_packages(spec)
    module = importlib.import_module(f"plugin_core.frameworks.{FRAMEWORKS[spec.framework].module}")
    return module.build(spec, inputs)
