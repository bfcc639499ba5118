"""A framework: NumPy on Ray Train's plain workers. The loop gets the spec's seed as `config["seed"]`."""

from __future__ import annotations

from typing import Any

from plugin_core.driver.train.frameworks.build import TrainerInputs
from plugin_core.specs import TrainSpec
from plugin_core.specs.frameworks import Framework

FRAMEWORK = Framework("numpy", "acme_raytrain.numpy_workers", {"numpy": "1.24"})


def build(spec: TrainSpec, inputs: TrainerInputs) -> Any:
    """Ray's trainer, on the cluster."""
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    config = {**inputs.train_loop_config, "seed": spec.seed or 0}
    return DataParallelTrainer(inputs.train_loop, train_loop_config=config, **inputs.for_trainer())
