"""A trial as in Ray Tune's ResultGrid."""

from types import SimpleNamespace
from typing import Any


def grid_result(trial: str, config: dict[str, Any], metrics: dict[str, Any], error: Exception | None = None) -> Any:
    return SimpleNamespace(metrics={"trial_id": trial, **metrics}, error=error, config=config)
