"""A training."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from plugin_core.model import Model
from plugin_core.results import CheckpointRef
from plugin_core.specs.config import DatasetConfig, Framework, Function, ScalingConfig, StepSpec
from plugin_core.specs.fields import Count, Flag, Name, Plain, Seed


class TorchConfig(Model):
    """`ray.train.torch.TorchConfig`: backend nccl, gloo or xla (None: by device; xla is Ray's `TorchXLAConfig`, for
    Trainium), seconds for the process group to form."""

    backend: Literal["nccl", "gloo", "xla"] | None = None
    init_method: Literal["env", "tcp"] = "env"
    timeout_s: Count = 1800


class TensorflowConfig(Model):
    """`legacy_keras`: `tf.keras` is Keras 2 (the package tf-keras). Under `MultiWorkerMirroredStrategy` Keras 3 cannot
    `fit`; a loop of one's own around `strategy.run` may use it."""

    legacy_keras: Flag = True


class TrainSpec(StepSpec):
    """Distributed training on Ray Train.

    `train_loop_per_worker` runs on every worker; XGBoost and LightGBM may go without one and be declared by `params`,
    `label_column`, `num_boost_round`, `early_stopping_rounds` and `checkpoint_frequency` (rounds) instead. `resume_from`
    is a checkpoint of *another* run to start warm from; the loop finds it through `ray.train.get_checkpoint()` as long as
    the run has no checkpoint of its own. `preprocessor` returns a preprocessor of `ray.data.preprocessors`: it is fitted on
    the dataset "train" once, transforms all datasets, and goes with each checkpoint to evaluation and batch inference.
    `deepspeed_config` is DeepSpeed's JSON; the loop finds it in its config under
    that name. `seed`: of Python's, NumPy's and the framework's random numbers, set in each worker before the loop.
    `report_all_ranks`: the journal keeps what each rank reports, not rank 0 alone. `world_check`: fail where workers that
    should train together train alone.
    """

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

    @model_validator(mode="after")
    def _preprocessor(self) -> Self:
        if self.preprocessor is not None and "train" not in self.datasets:
            raise ValueError("datasets: 'train' is missing, which the preprocessor is fitted on")
        return self

    @model_validator(mode="after")
    def _framework(self) -> Self:
        from plugin_core.frameworks.check import check

        check(self)
        return self
