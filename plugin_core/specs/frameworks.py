"""The frameworks that a TrainSpec may name."""

from __future__ import annotations

from dataclasses import dataclass, field

from plugin_core.errors import SpecError
from plugin_core.errors.shown import did_you_mean, shown
from plugin_core.storage.plugins import FRAMEWORKS as ADDED
from plugin_core.storage.plugins import names, plugin


@dataclass(frozen=True)
class Framework:
    """`packages`: package → minimum version, required on the cluster; the extra named after the framework installs them.
    `options`: its own spec fields. `module`: the module whose `build(spec, inputs)` returns the trainer, in
    `driver/train/frameworks`, or anywhere if the name has a dot. `join`: the call that joins a loop's workers into one
    world; the error quotes it if they did not join."""

    name: str
    module: str
    packages: dict[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    declarative: bool = False
    join: str = ""


_TORCH = {"torch": "2.6"}


_ON_TORCH = ("torch_config", "deepspeed_config")


_TREES = (
    "params",
    "label_column",
    "num_boost_round",
    "early_stopping_rounds",
    "checkpoint_frequency",
    "framework_callbacks",
)


FRAMEWORKS = {
    framework.name: framework
    for framework in (
        Framework(
            "torch",
            "torch",
            _TORCH,
            ("torch_config",),
            join="model = ray.train.torch.prepare_model(model), or fully_shard(model)",
        ),
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
            join="TrainingArguments(use_cpu=True) without a GPU",
        ),
        Framework(
            "accelerate",
            "torch",
            {"accelerate": "1.10", **_TORCH},
            _ON_TORCH,
            join="Accelerator(cpu=True) without a GPU, or with a DeepSpeedPlugin PartialState(cpu=True) before"
            " Accelerator(), and accelerator.prepare(model, …)",
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


def framework(name: str) -> Framework:
    """The framework of that name, built in or a plugin's. Raises SpecError if there is none."""
    if name in FRAMEWORKS:
        return FRAMEWORKS[name]
    found = plugin(ADDED, name, "framework")
    if found is None:
        known = [*FRAMEWORKS, *names(ADDED)]
        raise SpecError(f"framework: got {shown(name)}; expected {', '.join(known)}{did_you_mean(name, known)}")
    if not isinstance(found, Framework) or found.name != name:
        raise SpecError(f"framework: got {name!r}, whose plugin is {found!r}; expected a Framework of that name")
    return found
