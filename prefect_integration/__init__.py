"""Ray training steps as Prefect tasks: `train`, `evaluate`, `batch_infer`.

    from prefect import flow
    from prefect_integration import train

Nothing is imported here: Prefect's server imports this module, and the tasks load on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prefect_integration.tasks import batch_infer as batch_infer
    from prefect_integration.tasks import evaluate as evaluate
    from prefect_integration.tasks import train as train

__all__ = ["batch_infer", "evaluate", "train"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'prefect_integration' has no attribute {name!r}")
    return getattr(importlib.import_module("prefect_integration.tasks"), name)
