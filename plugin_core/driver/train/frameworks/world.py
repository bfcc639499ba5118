"""The world check: whether workers that should train together really do.

The failure is silent: each worker trains alone on its shard, all of them report, and the result is a model of one shard of
the data. So when a worker reports, check whether it has ever taken part in its framework's collectives.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from plugin_core.errors import UserCodeError
from plugin_core.specs import frameworks

_lightgbm_networks = 0


class WorldError(UserCodeError):
    """Workers that should train together are training alone."""


def watch(framework: str) -> None:
    """Start recording what `check` needs, before the loop runs."""
    if framework == "lightgbm":
        _watch_lightgbm()


def check(framework: str, num_workers: int) -> None:
    """Raise WorldError if this worker, one of several, has trained alone so far."""
    joined = frameworks.framework(framework)
    why = _CHECKS[joined.module](num_workers) if num_workers > 1 and joined.module in _CHECKS else None
    if why:
        raise WorldError(
            f"scaling_config.num_workers: got {num_workers}, but each worker trains alone: {why}; to join them:"
            f" {joined.join} (world_check=False if each is meant to work alone, on a shard of its own)"
        )


def _torch(num_workers: int) -> str | None:
    if (accelerate := _accelerate(num_workers)) is not None:
        return accelerate
    import torch.distributed as dist

    if not dist.is_initialized():
        return "torch.distributed has no process group"
    if dist.get_world_size() != num_workers:
        return f"torch.distributed has {dist.get_world_size()} ranks"
    if not any(_calls(group) for group in dist.distributed_c10d._world.pg_map):
        return "no collective operation was called in any process group"
    return None


def _calls(group: Any) -> int:
    """How many collectives the group has run, as counted by its backend for its own checks."""
    return int(group._get_sequence_number_for_group())


def _accelerate(num_workers: int) -> str | None:
    """Check Accelerate (and so Transformers), if the loop has created an Accelerator."""
    if "accelerate" not in sys.modules:
        return None
    from accelerate.state import AcceleratorState, PartialState

    found = PartialState._shared_state.get("num_processes", num_workers)
    if found != num_workers:
        return f"Accelerate has num_processes={found}"
    kind = AcceleratorState._shared_state.get("distributed_type")
    # a plugin sets its variable, but the FSDP plugin is used only on accelerators such as GPUs, and the DeepSpeed
    # plugin never with Accelerator(cpu=True)
    for plugin in ("FSDP", "DeepSpeed"):
        given = os.environ.get(f"ACCELERATE_USE_{plugin.upper()}", "").lower() == "true"
        if given and kind is not None and kind.value != plugin.upper():
            return (
                f"Accelerate ignores its {plugin} plugin on this device (distributed_type={kind.value}), so nothing is"
                " sharded"
            )
    return None


def _tensorflow(num_workers: int) -> str | None:
    from tensorflow.python.eager import context

    # the collectives server that MultiWorkerMirroredStrategy starts
    found = context.context()._collective_ops_server_def
    return None if found is not None else "no MultiWorkerMirroredStrategy was created"


def _watch_lightgbm() -> None:
    import lightgbm

    connect = lightgbm.Booster.set_network

    def set_network(self: Any, *args: Any, **kwargs: Any) -> Any:
        global _lightgbm_networks
        _lightgbm_networks += 1
        return connect(self, *args, **kwargs)

    lightgbm.Booster.set_network = set_network


def _lightgbm(num_workers: int) -> str | None:
    return None if _lightgbm_networks else "LightGBM got no network parameters"


def _horovod(num_workers: int) -> str | None:
    import horovod.torch as hvd

    if not hvd.is_initialized():
        return "Horovod is not initialised"
    return None if hvd.size() == num_workers else f"Horovod has {hvd.size()} ranks"


def _jax(num_workers: int) -> str | None:
    import jax

    found = jax.process_count()
    return None if found == num_workers else f"JAX has {found} processes"


#: By the module that builds a framework's trainer. XGBoost needs no check: Ray wraps the loop in its communicator. Plain
#: Python has no world.
_CHECKS: dict[str, Callable[[int], str | None]] = {
    "torch": _torch,
    "tensorflow": _tensorflow,
    "lightgbm": _lightgbm,
    "horovod": _horovod,
    "jax": _jax,
}
