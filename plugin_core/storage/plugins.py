"""What other installed packages add through entry points.

Each kind of plugin has a group. The entry point's name is the name that specs and URIs use; its value says where it is:

    [project.entry-points."raytrain.trackers"]
    lines = "my_package.lines:LinesTracker"

A package has to be installed where specs are written and on the cluster. Built-in names cannot be replaced.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib.metadata import EntryPoints, entry_points
from typing import Any

from plugin_core.errors import SpecError

#: A module that declares a kind when it is imported (`specs.step_kinds.declare`); the name is the kind.
STEP_KINDS = "raytrain.step_kinds"
#: A `specs.frameworks.Framework`.
FRAMEWORKS = "raytrain.frameworks"
#: A subclass of `specs.tracking.Tracker`.
TRACKERS = "raytrain.trackers"
#: A function that takes a URI's host and options and returns an fsspec filesystem; the name is the URI's scheme.
STORAGES = "raytrain.storages"
#: A function that takes what follows `name:` in a registry's URI and returns a `registry.base.Registry`.
REGISTRIES = "raytrain.registries"


@lru_cache(maxsize=32)
def _installed(group: str, path: tuple[str, ...]) -> EntryPoints:
    """A group's entry points. `path`: where to look for packages; reading a few hundred takes a tenth of a second."""
    return entry_points(group=group)


def names(group: str) -> list[str]:
    """What installed packages add to a group. Imports none of them."""
    return sorted({point.name for point in _installed(group, tuple(sys.path))})


def plugin(group: str, name: str, field: str) -> Any:
    """What an installed package adds under this name; None if there is no such entry point.

    Raises SpecError, naming the spec's field, if two packages add different things or it cannot be imported."""
    found = _installed(group, tuple(sys.path)).select(name=name)
    if not found:
        return None
    if len(values := sorted({point.value for point in found})) > 1:
        raise SpecError(f"{field}: got {name!r}, which {len(values)} packages add ({', '.join(values)}); expected one")
    try:
        return next(iter(found)).load()
    except Exception as exc:
        says = f"{type(exc).__name__}: {exc}".splitlines()[0][:200]
        raise SpecError(f"{field}: got {name!r}, whose plugin {values[0]} cannot be imported here ({says})") from exc
