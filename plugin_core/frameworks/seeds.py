"""Random numbers that a training can be repeated with."""

from __future__ import annotations

import os
import random


def set_seed(framework: str, seed: int) -> None:
    """Seed Python, NumPy and the framework in this worker, the same on every rank (so that all build the same model).

    JAX has no global state: a loop makes its keys from `config` of its own. XGBoost and LightGBM have the parameter
    `seed`, which `trees` sets. What a GPU's kernels add in another order stays as it is; for PyTorch see
    `ray.train.torch.enable_reproducibility`.
    """
    random.seed(seed)
    try:
        import numpy as np
    except ImportError:
        pass
    else:
        np.random.seed(seed)
    if framework in ("torch", "lightning", "transformers", "accelerate", "deepspeed", "horovod"):
        import torch

        torch.manual_seed(seed)
    if framework == "lightning":
        # Lightning seeds the workers of its data loaders from this
        os.environ["PL_GLOBAL_SEED"] = str(seed)
    if framework == "tensorflow":
        import tensorflow as tf

        tf.random.set_seed(seed)
