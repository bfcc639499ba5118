"""Check the packages that a step needs, on the cluster or here. Each is installed by an extra."""

from __future__ import annotations

import importlib.util
from importlib import metadata
from typing import Any

from plugin_core.errors import SpecError


def require(
    field: str, given: Any, package: str, extra: str, oldest: str | None = None, where: str = "on the cluster"
) -> None:
    """Raise SpecError, naming the spec's field, if the package is not installed here or is older than `oldest`. `where`:
    what the message calls this place."""
    install = f"pip install 'ray-train-workflows[{extra}]'"
    if importlib.util.find_spec(package) is None:
        raise SpecError(f"{field}: got {given!r}, whose package {package} is not installed {where}; {install}")
    if oldest is not None and (found := version(package)) is not None:
        from packaging.version import Version

        if Version(found) < Version(oldest):
            raise SpecError(
                f"{field}: got {given!r}, whose package {package} is {found} {where}; expected {oldest} or newer; {install}"
            )


def version(package: str) -> str | None:
    """The version of a package or its CPU variant; None if the distribution has a different name."""
    for name in (package, f"{package}-cpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None
