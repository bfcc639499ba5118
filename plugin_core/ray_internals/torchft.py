"""Ray Train's `TorchftConfig`, which is not in a public module yet (Ray 2.60)."""

from __future__ import annotations

from typing import Any


def torchft_config(**options: Any) -> Any:
    """Raises ImportError if this version of Ray has none."""
    from ray.train.v2.torch.torchft_config import TorchftConfig

    return TorchftConfig(**options)
