"""The local folders of a step's `runtime_env`, which are uploaded to the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plugin_core.errors import SpecError

#: What Ray takes besides a folder, by field.
_ARCHIVES = {
    "working_dir": (".zip", ".tar.gz", ".tgz"),
    "py_modules": (".py", ".whl"),
}


def local_folders(runtime_env: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What has to be uploaded, each with its field's name: everything that is not a URI."""
    given = [("working_dir", runtime_env.get("working_dir") or "")]
    given += [("py_modules", module) for module in runtime_env.get("py_modules") or []]
    return [(field, item) for field, item in given if item and "://" not in item]


def check_folders(runtime_env: Mapping[str, Any]) -> None:
    """Raise SpecError for a local folder or archive that is not here. It holds no variable's value."""
    for field, item in local_folders(runtime_env):
        endings = _ARCHIVES[field]
        if not Path(item).is_dir() and not (Path(item).is_file() and item.endswith(endings)):
            raise SpecError(
                f"runtime_env.{field}: got {item!r}, which is not there; expected a folder, a file that ends in"
                f" {' or '.join(endings)}, or a URI"
            )
