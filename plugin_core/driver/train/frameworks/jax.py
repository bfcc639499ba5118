"""JAX on Ray's JaxTrainer, with `jax.distributed` set up on GPUs and on CPUs alike."""

from __future__ import annotations

from typing import Any

from plugin_core.driver.train.frameworks.build import TrainerInputs
from plugin_core.specs import TrainSpec


def build(spec: TrainSpec, inputs: TrainerInputs) -> Any:
    from ray.train.v2.jax import JaxConfig, JaxTrainer

    # Ray initialises jax.distributed if use_gpu or use_tpu is set; JAX_PLATFORMS, which the workers get from
    # `worker_environment`, selects the device
    return JaxTrainer(
        inputs.train_loop,
        train_loop_config=inputs.train_loop_config,
        jax_config=JaxConfig(use_gpu=True),
        **inputs.for_trainer(),
    )
