"""PyTorch: DistributedDataParallel and the like on `ray.train.torch.TorchTrainer`."""

from __future__ import annotations

from typing import Any

from plugin_core.frameworks import TrainerInputs
from plugin_core.specs import TorchConfig, TrainSpec


def build(spec: TrainSpec, inputs: TrainerInputs) -> Any:
    from ray.train.torch import TorchConfig as RayTorchConfig
    from ray.train.torch import TorchTrainer

    options = spec.torch_config or TorchConfig()
    return TorchTrainer(
        inputs.train_loop,
        train_loop_config=inputs.train_loop_config,
        torch_config=RayTorchConfig(backend=options.backend, init_method=options.init_method, timeout_s=options.timeout_s),
        scaling_config=inputs.scaling_config,
        run_config=inputs.run_config,
        datasets=inputs.datasets,
    )
