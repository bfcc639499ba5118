"""Random numbers that a training can be repeated with."""

from __future__ import annotations

import importlib.util
import os
import random
from collections.abc import Callable
from typing import Any


def set_seed(framework: str, seed: int) -> None:
    """Seed Python, NumPy and the framework in this worker, the same on every rank (so that all build the same model).

    JAX has no global state: a loop makes its keys from `config` of its own. XGBoost and LightGBM have the parameter
    `seed`, which `trees` sets. What a GPU's kernels add in another order stays as it is; for PyTorch see
    `ray.train.torch.enable_reproducibility`.
    """
    # all imports come first: some of them draw random numbers themselves
    seeds: list[Callable[[int], Any]] = [random.seed]
    if importlib.util.find_spec("numpy") is not None:
        import numpy as np

        seeds.append(np.random.seed)
    if framework in ("torch", "lightning", "transformers", "accelerate", "deepspeed", "horovod"):
        import torch

        seeds.append(torch.manual_seed)
    if framework == "lightning":
        # Lightning seeds the workers of its data loaders from this
        os.environ["PL_GLOBAL_SEED"] = str(seed)
    if framework == "tensorflow":
        import tensorflow as tf

        seeds.append(tf.random.set_seed)
    for set_one in seeds:
        set_one(seed)
