"""A training."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from plugin_core.model import Model
from plugin_core.results import CheckpointRef
from plugin_core.specs.config import DatasetConfig, Function, ScalingConfig, StepSpec


class TorchConfig(Model):
    """`ray.train.torch.TorchConfig`: backend nccl or gloo (None: by device), seconds for the process group to form."""

    backend: Literal["nccl", "gloo"] | None = None
    init_method: Literal["env", "tcp"] = "env"
    timeout_s: int = Field(1800, gt=0)


class TrainSpec(StepSpec):
    """Distributed training on Ray Train.

    `train_loop_per_worker` runs on every worker; XGBoost may go without one and be declared by `params`, `label_column`
    and `num_boost_round` instead. `resume_from` is a checkpoint of *another* run to start warm from; the loop finds it
    through `ray.train.get_checkpoint()` as long as the run has no checkpoint of its own.
    """

    kind: Literal["train"] = "train"
    framework: str = "torch"
    train_loop_per_worker: Function | None = None
    train_loop_config: dict[str, Any] = {}
    scaling_config: ScalingConfig = ScalingConfig()
    datasets: dict[str, DatasetConfig] = {}
    torch_config: TorchConfig | None = None
    params: dict[str, Any] | None = None
    label_column: str | None = None
    num_boost_round: int | None = Field(None, ge=1)
    resume_from: CheckpointRef | None = None

    @model_validator(mode="after")
    def _framework(self) -> Self:
        from plugin_core.frameworks import check

        check(self)
        return self
