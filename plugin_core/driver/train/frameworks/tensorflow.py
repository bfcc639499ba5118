"""TensorFlow on `ray.train.tensorflow.TensorflowTrainer`, which sets `TF_CONFIG` for MultiWorkerMirroredStrategy."""

from __future__ import annotations

from typing import Any

from plugin_core.driver.train.frameworks.build import TrainerInputs
from plugin_core.specs import TrainSpec


def build(spec: TrainSpec, inputs: TrainerInputs) -> Any:
    from ray.train.tensorflow import TensorflowTrainer

    return TensorflowTrainer(inputs.train_loop, train_loop_config=inputs.train_loop_config, **inputs.for_trainer())
