"""The packages that a step needs on the cluster, each of an extra."""

from __future__ import annotations

import importlib.util
from typing import Any

from plugin_core.errors import SpecError


def require(field: str, given: Any, package: str, extra: str) -> None:
    """Raise SpecError, naming the spec's field, where the package is not installed here."""
    if importlib.util.find_spec(package) is None:
        raise SpecError(
            f"{field}: given {given!r}, whose package {package} is not installed on the cluster;"
            f" pip install 'ray-train-workflows[{extra}]'"
        )
