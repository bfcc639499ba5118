"""Detects a NaN or infinite loss, in the worker that reports it and before its checkpoint is kept."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from plugin_core.errors import NanLossError


def check_finite(metrics: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raise NanLossError if a metric is NaN or infinite. `names`: as in `failure_policy.nan_loss.metrics`; empty: every
    metric whose name ends with "loss"."""
    for name, value in _flat(metrics):
        watched = name in names if names else name.lower().endswith("loss")
        if watched and (number := _number(value)) is not None and not math.isfinite(number):
            raise NanLossError(f"the reported {name} is {number}")


def _flat(metrics: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested metrics have "/" in their names, as Ray Train writes them."""
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value


def _number(value: Any) -> float | None:
    """A metric as a number, including NumPy's and PyTorch's; None if it is not one."""
    try:
        return float(value) if not isinstance(value, (str, bytes)) else None
    except (TypeError, ValueError, RuntimeError, OverflowError):  # a tensor of several elements, or an enormous integer
        return None
