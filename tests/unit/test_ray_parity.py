"""Every parameter of Ray Train's public API is a field of a spec, or is on the list below with a reason."""

import inspect
import pkgutil
from typing import Any

import pytest

from plugin_core import specs
from plugin_core.specs.train import TorchConfig, TrainSpec
from plugin_core.specs.validation import ValidationConfig

#: Ray's parameter → the field that stands for it, where their names differ.
ELSEWHERE = {
    "RunConfig.storage_filesystem": "accepted beside storage_path; kept is the URI that rebuilds it",
    "DataConfig.datasets_to_split": "datasets.<name>.shard",
    "DataConfig.execution_options": "datasets.<name>.preserve_order, .resource_limits, .label_selector",
    "ExecutionOptions.resource_limits": "datasets.<name>.resource_limits",
    "ExecutionOptions.preserve_order": "datasets.<name>.preserve_order",
    "ExecutionOptions.label_selector": "datasets.<name>.label_selector",
    "Trainer.dataset_config": "data_config, and the fields of each dataset",
    "Trainer.validation_config": "validation",
    "Trainer.resume_from_checkpoint": "resume_from",
    "ValidationConfig.task_config": "validation.fn_kwargs, .timeout_s",
    "ValidationConfig.ray_remote_kwargs": "validation.resources, .max_retries",
    "ValidationTaskConfig.fn_kwargs": "validation.fn_kwargs",
    "ValidationTaskConfig.timeout_s": "validation.timeout_s",
}
#: Ray's parameter → why there is no field for it.
LEFT_OUT = {
    "ScalingConfig.trainer_resources": "the driver is the trainer's process; Ray Train V2 ignores it",
    "ScalingConfig.use_tpu": "no TPU to try it on",
    "ScalingConfig.topology": "of TPUs",
    "RunConfig.logging_config": "the step's log and its files are `raytrain logs`",
    "DataConfig.enable_shard_locality": "in a DataConfig of your own, by data_config",
    "ExecutionOptions.exclude_resources": "deprecated by Ray",
    "ExecutionOptions.actor_locality_enabled": "deprecated by Ray",
    "ExecutionOptions.verbose_progress": "progress is the step's log",
    "Trainer.metadata": "Ray Train V2 does not take it any more",
    "Trainer.xgboost_config": "its only option is how workers find each other",
    "Trainer.lightgbm_config": "its only option is how workers find each other",
    "Trainer.jax_config": "its only options follow from scaling_config: GPUs or CPUs",
}
#: Imported by the tests: TensorFlow alone takes seconds.
CLASSES: list[tuple[str, str, Any]] = [
    ("ScalingConfig", "ray.train:ScalingConfig", specs.ScalingConfig),
    ("RunConfig", "ray.train:RunConfig", specs.RunConfig),
    ("CheckpointConfig", "ray.train:CheckpointConfig", specs.CheckpointConfig),
    ("FailureConfig", "ray.train:FailureConfig", specs.FailureConfig),
    ("DataConfig", "ray.train:DataConfig", None),
    ("ExecutionOptions", "ray.data:ExecutionOptions", None),
    ("ValidationConfig", "ray.train:ValidationConfig", ValidationConfig),
    ("ValidationTaskConfig", "ray.train:ValidationTaskConfig", None),
    ("TorchConfig", "ray.train.torch:TorchConfig", TorchConfig),
    ("TensorflowConfig", "ray.train.tensorflow:TensorflowConfig", specs.TensorflowConfig),
    ("Trainer", "ray.train.torch:TorchTrainer", TrainSpec),
    ("Trainer", "ray.train.tensorflow:TensorflowTrainer", TrainSpec),
    ("Trainer", "ray.train.xgboost:XGBoostTrainer", TrainSpec),
    ("Trainer", "ray.train.lightgbm:LightGBMTrainer", TrainSpec),
    ("Trainer", "ray.train.v2.jax:JaxTrainer", TrainSpec),
]


def parameters_of(reference: str) -> list[inspect.Parameter]:
    return list(inspect.signature(pkgutil.resolve_name(reference)).parameters.values())


@pytest.mark.parametrize(("name", "theirs", "ours"), CLASSES)
def test_every_parameter_of_ray_train_is_a_field_or_left_out_with_a_reason(name: str, theirs: str, ours: Any) -> None:
    fields = set(ours.model_fields) if ours is not None else set()
    missing = [
        parameter.name
        for parameter in parameters_of(theirs)
        if parameter.default != "DEPRECATED"
        and parameter.name not in fields
        and f"{name}.{parameter.name}" not in ELSEWHERE | LEFT_OUT
    ]
    assert missing == []


def test_the_lists_name_only_what_ray_has() -> None:
    known = {f"{name}.{parameter.name}" for name, theirs, _ in CLASSES for parameter in parameters_of(theirs)}
    assert set(ELSEWHERE | LEFT_OUT) <= known
