"""The spec of a training."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from plugin_core.specs.base import Model
from plugin_core.specs.common import DatasetConfig, Framework, ScalingConfig
from plugin_core.specs.failure_policy import FailurePolicy, check_policy
from plugin_core.specs.fields import Count, Flag, Name, Plain, Seed
from plugin_core.specs.frameworks import FRAMEWORKS
from plugin_core.specs.frameworks import framework as known_framework
from plugin_core.specs.function_field import Maker, Makers
from plugin_core.specs.hang import HangDetection
from plugin_core.specs.results import CheckpointRef
from plugin_core.specs.step import READING, Bundle, StepSpec, in_sum
from plugin_core.specs.train_loop import TrainLoop
from plugin_core.specs.validation import ValidationConfig


class TorchConfig(Model):
    """PyTorch's process group (`ray.train.torch.TorchConfig`)."""

    backend: Literal["nccl", "gloo", "xla"] | None = Field(
        None, description="None: nccl with GPUs, else gloo. xla is Ray's `TorchXLAConfig`, for Trainium"
    )
    init_method: Literal["env", "tcp"] = Field("env", description="how the process group finds rank 0")
    timeout_s: Count = Field(1800, description="seconds for the process group to form")
    fault_tolerance: Literal["torchft"] | None = Field(
        None, description="`torchft`: a lost replica group is replaced while the others go on (Ray's `TorchftConfig`)"
    )
    lighthouse: Plain = Field({}, description="with torchft: arguments of `torchft.coordination.LighthouseServer`")

    @model_validator(mode="after")
    def _torchft(self) -> Self:
        if self.lighthouse and self.fault_tolerance is None:
            raise ValueError("lighthouse: got it without fault_tolerance; expected fault_tolerance 'torchft'")
        if self.fault_tolerance is not None and self.backend == "xla":
            raise ValueError("fault_tolerance: got 'torchft' with backend 'xla'; expected nccl or gloo")
        return self


class TensorflowConfig(Model):
    """Which Keras to use. Keras 3 cannot `fit` under `MultiWorkerMirroredStrategy`; your own loop around `strategy.run`
    can use it."""

    legacy_keras: Flag = Field(True, description="`tf.keras` is Keras 2 (the package tf-keras)")


class TrainSpec(StepSpec):
    """Distributed training on Ray Train, by a loop that every worker runs; XGBoost and LightGBM can do without one."""

    resources_field = "scaling_config"
    kind: Literal["train"] = "train"
    framework: Framework = Field("torch", description="what the workers train with")
    train_loop_per_worker: TrainLoop | None = Field(
        None, description="your loop, which every worker runs; XGBoost and LightGBM may have `params` instead"
    )
    train_loop_config: Plain = Field({}, description="the loop's argument")
    scaling_config: ScalingConfig = Field(ScalingConfig(), description="workers and their resources")
    datasets: dict[Name, DatasetConfig] = Field({}, description="by name, for `ray.train.get_dataset_shard(name)`")
    data_config: Maker | None = Field(
        None, description="returns a `ray.train.DataConfig` of your own, which hands the datasets to the workers"
    )
    preprocessor: Maker | None = Field(
        None,
        description='returns one of `ray.data.preprocessors`: fitted on "train", applied to all, saved with checkpoints',
    )
    torch_config: TorchConfig | None = Field(None, description="PyTorch's process group")
    tensorflow_config: TensorflowConfig | None = Field(None, description="which Keras")
    deepspeed_config: Plain | None = Field(
        None, description="DeepSpeed's JSON; the loop finds it in its config under that name"
    )
    params: Plain | None = Field(None, description="XGBoost's or LightGBM's parameters, for a training without a loop")
    label_column: Name | None = Field(None, description="with `params`: the column to predict")
    num_boost_round: Count | None = Field(None, description="with `params`: rounds")
    early_stopping_rounds: Count | None = Field(
        None, description="with `params`: stop after this many rounds without a better metric"
    )
    checkpoint_frequency: Count | None = Field(None, description="with `params`: rounds between checkpoints; None: 10")
    framework_callbacks: Makers | None = Field(
        None, description="with `params`: functions that return a callback of XGBoost or LightGBM, in each worker"
    )
    hang_detection: HangDetection = Field(HangDetection(), description="what happens when the training stands still")
    failure_policy: FailurePolicy | None = Field(
        None, description="what follows a failure, by its cause; a cause without a rule is treated as without a policy"
    )
    validation: ValidationConfig | None = Field(
        None, description="how checkpoints are validated that the loop reports with `validation=True`"
    )
    seed: Seed | None = Field(None, description="for the random numbers of Python, NumPy and the framework, in each worker")
    deterministic: Flag = Field(
        False,
        description="with `seed` and PyTorch: only deterministic algorithms (`ray.train.torch.enable_reproducibility`)",
    )
    report_all_ranks: Flag = Field(False, description="keep every rank's reports, not only rank 0's")
    world_check: Flag = Field(True, description="fail if workers that should train together train alone")
    resume_from: CheckpointRef | None = Field(
        None, description="a checkpoint of *another* run to start warm from, until the run has its own"
    )

    def bundles(self) -> list[Bundle]:
        return self._with_workers(self.scaling_config.worker_range[0])

    def at_most(self) -> dict[str, float]:
        return in_sum(self._with_workers(self.scaling_config.worker_range[1]))

    def _with_workers(self, number: int) -> list[Bundle]:
        workers = (number, self.scaling_config.worker_resources())
        reading = [READING] if self.datasets else []
        validating = [(1, dict(self.validation.resources))] if self.validation is not None else []
        return [workers, *reading, *validating]

    def needed_columns(self, field: str) -> dict[str, list[str]]:
        return {"label_column": [self.label_column]} if self.label_column is not None else {}

    def needed_rows(self, dataset: DatasetConfig) -> int:
        # one per worker, or some wait forever
        return self.scaling_config.worker_range[0] if dataset.shard else 1

    @model_validator(mode="after")
    def _preprocessor(self) -> Self:
        if self.preprocessor is not None and "train" not in self.datasets:
            raise ValueError("datasets: 'train' is missing; the preprocessor is fitted on it")
        return self

    @model_validator(mode="after")
    def _data_config(self) -> Self:
        if self.data_config is None:
            return self
        if not self.datasets:
            raise ValueError("data_config: got it without datasets; expected datasets to hand out")
        for name, dataset in self.datasets.items():
            defaults = {field: DatasetConfig.model_fields[field].default for field in _OF_DATA_CONFIG}
            if fields := [field for field, default in defaults.items() if getattr(dataset, field) != default]:
                raise ValueError(
                    f"datasets.{name}.{fields[0]}: got it with data_config; expected your DataConfig to decide it"
                )
        return self

    @model_validator(mode="after")
    def _framework(self) -> Self:

        check(self)
        return self


#: Fields of a dataset that say how it is handed to the workers.
_OF_DATA_CONFIG = ("shard", "preserve_order", "resource_limits", "label_selector", "resumable")
#: DeepSpeed's ZeRO stages.
ZERO_STAGES = (0, 1, 2, 3)


#: XGBoost and LightGBM parameters → spec fields that replace them, from which a resumed training counts its rounds.
_FIELDS_OF_PARAMS = {
    **dict.fromkeys(("num_boost_round", "num_iterations", "n_estimators"), "num_boost_round"),
    **dict.fromkeys(("early_stopping_round", "early_stopping_rounds"), "early_stopping_rounds"),
}


def check(spec: TrainSpec) -> None:
    """Raise ValueError if a TrainSpec does not match its framework."""
    framework = known_framework(spec.framework)
    for field in sorted({option for known in FRAMEWORKS.values() for option in known.options}):
        if getattr(spec, field) is not None and field not in framework.options:
            owners = ", ".join(known.name for known in FRAMEWORKS.values() if field in known.options)
            raise ValueError(f"{field}: got it with framework {spec.framework!r}; only valid with {owners}")
    declared = framework.declarative and spec.params is not None
    if spec.train_loop_per_worker is None and not declared:
        alternative = " or params and label_column" if framework.declarative else ""
        raise ValueError(f"train_loop_per_worker: missing; framework {spec.framework!r} needs it{alternative}")
    if declared and spec.train_loop_per_worker is None:
        _check_declared(spec)
    if spec.deterministic and ("torch" not in framework.packages or spec.seed is None):
        missing = (
            "without seed; expected a seed"
            if spec.seed is None
            else f"with framework {spec.framework!r}; expected one on PyTorch"
        )
        raise ValueError(f"deterministic: got True {missing}")
    if spec.framework_callbacks is not None and spec.params is None:
        raise ValueError("framework_callbacks: got it without params; expected the train loop to pass its own callbacks")
    if spec.deepspeed_config is not None:
        _check_deepspeed(spec, spec.deepspeed_config)
    if spec.failure_policy is not None:
        kept = spec.run_config.checkpoint_config.num_to_keep
        check_policy(spec.failure_policy, spec.train_loop_config, declared and spec.train_loop_per_worker is None, kept)
    if spec.run_config.checkpoint_config.local_tier is not None:
        _check_tier(spec)


def _check_tier(spec: TrainSpec) -> None:
    """Raise ValueError for a local tier with a feature that needs every checkpoint on storage, or needs workers that go
    on without the others."""
    field = "run_config.checkpoint_config.local_tier"
    if spec.validation is not None:
        raise ValueError(f"{field}: got it with validation; expected one of them: a checkpoint is validated on storage")
    if spec.torch_config is not None and spec.torch_config.fault_tolerance is not None:
        raise ValueError(f"{field}: got it with torch_config.fault_tolerance; expected one of them")
    if spec.run_config.failure_config.relax_collectives_on_preemption:
        raise ValueError(
            f"{field}: got it with run_config.failure_config.relax_collectives_on_preemption; expected one of them:"
            " a checkpoint on the nodes needs all ranks"
        )


def _check_declared(spec: TrainSpec) -> None:
    for field in ("data_config", "validation"):
        if getattr(spec, field) is not None:
            raise ValueError(f"{field}: got it with params; expected a train_loop_per_worker")
    if spec.label_column is None:
        raise ValueError("label_column: missing; training declared by params needs it")
    if "train" not in spec.datasets:
        raise ValueError("datasets: 'train' is missing; training declared by params needs it")
    for name, config in spec.datasets.items():
        if config.resumable:
            raise ValueError(f"datasets.{name}.resumable: got True; expected False, since params train on all rows at once")
    for alias, field in _FIELDS_OF_PARAMS.items():
        if alias in (spec.params or {}):
            raise ValueError(f"params.{alias}: set it as the field {field} of the spec instead")
    if spec.early_stopping_rounds is not None and len(spec.datasets) < 2:
        raise ValueError(
            f"early_stopping_rounds: got {spec.early_stopping_rounds} with only the dataset 'train'; expected another one"
            " to evaluate on"
        )


def _check_deepspeed(spec: TrainSpec, config: dict[str, Any]) -> None:
    if "deepspeed_config" in spec.train_loop_config:
        raise ValueError("deepspeed_config: also in train_loop_config; expected it in one place")
    stage = _section(config, "zero_optimization").get("stage", 0)
    if stage not in ZERO_STAGES:
        raise ValueError(f"deepspeed_config.zero_optimization.stage: got {stage!r}; expected 0, 1, 2, 3")
    if all(_section(config, name).get("enabled") is True for name in ("fp16", "bf16")):
        raise ValueError("deepspeed_config: got fp16 and bf16, both enabled; expected one of them")
    low, high = spec.scaling_config.worker_range
    sizes = [config.get(name) for name in ("train_batch_size", "train_micro_batch_size_per_gpu")]
    steps = config.get("gradient_accumulation_steps", 1)
    if low == high and all(isinstance(size, int) for size in (*sizes, steps)) and sizes[0] != sizes[1] * steps * low:
        raise ValueError(
            f"deepspeed_config.train_batch_size: got {sizes[0]}; expected {sizes[1] * steps * low}, which is"
            f" train_micro_batch_size_per_gpu {sizes[1]} × gradient_accumulation_steps {steps} × {low} workers"
        )


def _section(config: dict[str, Any], name: str) -> dict[str, Any]:
    section = config.get(name, {})
    if not isinstance(section, dict):
        raise ValueError(f"deepspeed_config.{name}: got {section!r}; expected a mapping")
    return section
