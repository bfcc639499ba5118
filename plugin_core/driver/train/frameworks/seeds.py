"""Seeds random number generators for reproducible training."""

from __future__ import annotations

import importlib.util
import os
import random
from collections.abc import Callable
from typing import Any

from plugin_core.specs import frameworks


def set_seed(framework: str, seed: int, *, deterministic: bool = False) -> None:
    """Seed Python, NumPy and the framework in this worker, the same on every rank, so that all build the same model.

    JAX has no global state: a loop makes its own keys from `config`. XGBoost and LightGBM have the parameter `seed`, which
    `trees` sets. Nondeterministic GPU kernels stay nondeterministic; with `deterministic`, PyTorch uses none of them
    (`ray.train.torch.enable_reproducibility`).
    """
    # import everything first: some imports draw random numbers
    seeds: list[Callable[[int], Any]] = [random.seed]
    if importlib.util.find_spec("numpy") is not None:
        import numpy as np

        seeds.append(np.random.seed)
    if "torch" in frameworks.framework(framework).packages:
        import torch

        seeds.append(torch.manual_seed)
    if framework == "lightning":
        # Lightning seeds the workers of its data loaders from this
        os.environ["PL_GLOBAL_SEED"] = str(seed)
    if framework == "tensorflow":
        import tensorflow as tf

        seeds.append(tf.random.set_seed)
    if deterministic:
        from ray.train.torch import enable_reproducibility

        seeds.append(enable_reproducibility)
    for set_one in seeds:
        set_one(seed)
