"""Convert reported metrics to plain JSON values.

Ray Train's controller serialises every reported metric into its snapshot and crashes on a numpy float32 or a tensor;
Airflow rejects NaN in an XCom. So metrics are converted to plain Python values first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

#: A counter beyond this (or NaN) counts nothing.
MOST = 10**15
#: A time beyond this (in the year 2096) is nonsense.
LATEST = 4e9


def json_safe(value: Any) -> Any:
    """`value` as JSON data: numpy and torch scalars become numbers, arrays lists, NaN and Inf None, the rest `str`."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): json_safe(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [json_safe(item) for item in value]
    # numpy and torch share this protocol, so neither is imported here; a tensor that requires grad or is on a GPU must be
    # detached first
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    if hasattr(value, "tolist"):
        return json_safe(value.tolist())
    if hasattr(value, "item"):
        return json_safe(value.item())
    return str(value)


def also(*forms: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    """A `json_schema_extra` that adds a model's short forms to its JSON schema, against which Prefect checks a
    deployment's parameters."""

    def add(schema: dict[str, Any]) -> None:
        whole = dict(schema)
        schema.clear()
        schema["anyOf"] = [whole, *forms]

    return add


#: Short forms in a JSON schema: text, and a step's result.
TEXT: dict[str, Any] = {"type": "string"}
RESULT: dict[str, Any] = {"type": "object", "required": ["kind"]}


def flat(value: Any, separator: str = ".", prefix: str = "") -> dict[str, Any]:
    """Flatten nested dicts, joining their keys; an empty dict stays as it is."""
    if not isinstance(value, dict) or not value:
        return {prefix: value}
    found: dict[str, Any] = {}
    for key, item in value.items():
        found |= flat(item, separator, f"{prefix}{separator}{key}" if prefix else str(key))
    return found


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    """Whether a metric is a usable number: a user may report integers that no float can hold."""
    return is_number(value) and abs(value) < MOST


def is_time(value: Any) -> bool:
    """Whether a value from a file is a plausible time, in seconds since the epoch."""
    return is_number(value) and 0 <= value < LATEST
