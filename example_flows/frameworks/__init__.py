"""One small training per framework: `SPEC`, whose loop is the module's `train_loop`, and `evaluate(checkpoint)`.

    python -m example_flows.frameworks [NAME ...]        as Prefect flows
    python example_dags/demo.py frameworks               the same specs in a real Airflow

All run on two workers, on CPUs or GPUs, and download nothing.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

from plugin_core.specs.frameworks import FRAMEWORKS

NAMES = (
    "torch",
    "local_shuffle",
    "fsdp",
    "lightning",
    "lightning_fsdp",
    "lightning_deepspeed",
    "transformers",
    "transformers_deepspeed",
    "vit",
    "lora",
    "accelerate",
    "accelerate_fsdp",
    "accelerate_deepspeed",
    "deepspeed",
    "tensorflow",
    "xgboost",
    "lightgbm",
    "jax",
    "horovod",
)


def example(name: str) -> Any:
    """The module of an example."""
    return importlib.import_module(f"example_flows.frameworks.{name}")


def packages(name: str) -> list[str]:
    """What an example needs: the packages of its framework, and its own."""
    module = example(name)
    with_deepspeed = ["deepspeed"] if module.SPEC.deepspeed_config is not None else []
    return list(
        dict.fromkeys([*FRAMEWORKS[module.SPEC.framework].packages, *with_deepspeed, *getattr(module, "PACKAGES", ())])
    )


def installed() -> list[str]:
    """The examples whose packages are installed here."""
    return [name for name in NAMES if all(map(find_spec, packages(name)))]


def confirmed(metrics: dict[str, Any], scores: dict[str, float]) -> bool:
    """Whether the checkpoint scores what its training reported; after early stopping, it has the best round's model."""
    return all(abs(metrics.get("best_score", metrics[key]) - value) < 0.001 for key, value in scores.items())
