"""No framework: plain Python workers on Ray Train's base trainer, with reports and checkpoints."""

from __future__ import annotations

from typing import Any

from plugin_core.driver.train.frameworks.build import TrainerInputs
from plugin_core.specs import TrainSpec


def build(spec: TrainSpec, inputs: TrainerInputs) -> Any:
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    return DataParallelTrainer(inputs.train_loop, train_loop_config=inputs.train_loop_config, **inputs.for_trainer())
