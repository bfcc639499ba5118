"""The spec of a training."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import model_validator

from plugin_core.specs.base import Model
from plugin_core.specs.common import DatasetConfig, Framework, Function, ScalingConfig
from plugin_core.specs.fields import Count, Flag, Name, Plain, Seed
from plugin_core.specs.frameworks import FRAMEWORKS
from plugin_core.specs.results import CheckpointRef
from plugin_core.specs.step import READING, Bundle, StepSpec, in_sum


class TorchConfig(Model):
    """`ray.train.torch.TorchConfig`: backend nccl, gloo or xla (None: by device; xla is Ray's `TorchXLAConfig`, for
    Trainium), seconds for the process group to form."""

    backend: Literal["nccl", "gloo", "xla"] | None = None
    init_method: Literal["env", "tcp"] = "env"
    timeout_s: Count = 1800


class TensorflowConfig(Model):
    """`legacy_keras`: `tf.keras` is Keras 2 (the package tf-keras). Keras 3 cannot `fit` under
    `MultiWorkerMirroredStrategy`, but a custom loop around `strategy.run` may use it."""

    legacy_keras: Flag = True


class TrainSpec(StepSpec):
    """Distributed training on Ray Train.

    `train_loop_per_worker` runs on every worker; XGBoost and LightGBM may instead be declared by `params`, `label_column`,
    `num_boost_round`, `early_stopping_rounds` and `checkpoint_frequency` (rounds). `resume_from`: a checkpoint of *another*
    run for a warm start, which `ray.train.get_checkpoint()` returns until the run has its own checkpoint. `preprocessor`
    returns a preprocessor from `ray.data.preprocessors`: it is fitted once on the dataset "train", transforms all datasets,
    and is saved with each checkpoint for evaluation and batch inference. `deepspeed_config`: DeepSpeed's JSON, passed to
    the loop in its config under that name. `seed`: for the random numbers of Python, NumPy and the framework, set in each
    worker before the loop. `report_all_ranks`: the journal keeps every rank's reports, not only rank 0's. `world_check`:
    fail if workers that should train together train separately.
    """

    resources_field = "scaling_config"
    kind: Literal["train"] = "train"
    framework: Framework = "torch"
    train_loop_per_worker: Function | None = None
    train_loop_config: Plain = {}
    scaling_config: ScalingConfig = ScalingConfig()
    datasets: dict[Name, DatasetConfig] = {}
    preprocessor: Function | None = None
    torch_config: TorchConfig | None = None
    tensorflow_config: TensorflowConfig | None = None
    deepspeed_config: Plain | None = None
    params: Plain | None = None
    label_column: Name | None = None
    num_boost_round: Count | None = None
    early_stopping_rounds: Count | None = None
    checkpoint_frequency: Count | None = None
    seed: Seed | None = None
    report_all_ranks: Flag = False
    world_check: Flag = True
    resume_from: CheckpointRef | None = None

    def bundles(self) -> list[Bundle]:
        return self._with_workers(self.scaling_config.worker_range[0])

    def at_most(self) -> dict[str, float]:
        return in_sum(self._with_workers(self.scaling_config.worker_range[1]))

    def _with_workers(self, number: int) -> list[Bundle]:
        workers = (number, self.scaling_config.worker_resources())
        return [workers, READING] if self.datasets else [workers]

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
    def _framework(self) -> Self:

        check(self)
        return self


#: DeepSpeed's ZeRO stages.
ZERO_STAGES = (0, 1, 2, 3)


#: XGBoost and LightGBM parameters → spec fields that replace them, from which a resumed training counts its rounds.
_FIELDS_OF_PARAMS = {
    **dict.fromkeys(("num_boost_round", "num_iterations", "n_estimators"), "num_boost_round"),
    **dict.fromkeys(("early_stopping_round", "early_stopping_rounds"), "early_stopping_rounds"),
}


def check(spec: TrainSpec) -> None:
    """Raise ValueError if a TrainSpec does not match its framework."""
    framework = FRAMEWORKS[spec.framework]
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
    if spec.deepspeed_config is not None:
        _check_deepspeed(spec, spec.deepspeed_config)


def _check_declared(spec: TrainSpec) -> None:
    if spec.label_column is None:
        raise ValueError("label_column: missing; training declared by params needs it")
    if "train" not in spec.datasets:
        raise ValueError("datasets: 'train' is missing; training declared by params needs it")
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
