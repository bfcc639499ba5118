"""PyTorch, and libraries that train on its process groups (Lightning, Transformers, Accelerate, DeepSpeed), on
`ray.train.torch.TorchTrainer`."""

from __future__ import annotations

from typing import Any

from plugin_core.driver.train.frameworks.build import TrainerInputs
from plugin_core.errors import SpecError
from plugin_core.ray_internals.torchft import torchft_config
from plugin_core.specs import TorchConfig, TrainSpec


def build(spec: TrainSpec, inputs: TrainerInputs) -> Any:
    from ray.train.torch import TorchTrainer

    config = inputs.train_loop_config
    if spec.deepspeed_config is not None:
        config = {**config, "deepspeed_config": spec.deepspeed_config}
    return TorchTrainer(
        inputs.train_loop,
        train_loop_config=config,
        torch_config=_torch_config(spec.torch_config or TorchConfig()),
        **inputs.for_trainer(),
    )


def _torch_config(options: TorchConfig) -> Any:
    from ray.train.torch import TorchConfig as RayTorchConfig

    given = {"init_method": options.init_method, "timeout_s": options.timeout_s}
    if options.backend == "xla":
        from ray.train.torch.xla import TorchXLAConfig

        return TorchXLAConfig(**given)
    if options.fault_tolerance == "torchft":
        return _torchft_config(lighthouse_kwargs=options.lighthouse, backend=options.backend, **given)
    return RayTorchConfig(backend=options.backend, **given)


def _torchft_config(**options: Any) -> Any:
    import ray

    try:
        return torchft_config(**options)
    except ImportError:
        raise SpecError(
            f"torch_config.fault_tolerance: got 'torchft', which Ray {ray.__version__} on the cluster does not have;"
            " expected a newer Ray, or None"
        ) from None
