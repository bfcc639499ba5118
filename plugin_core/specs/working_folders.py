"""The local folders in a step's `runtime_env`, which are uploaded to the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cloudpickle

from plugin_core.errors import SpecError

#: Field → file types that Ray accepts besides a folder.
_ARCHIVES = {
    "working_dir": (".zip", ".tar.gz", ".tgz"),
    "py_modules": (".py", ".whl"),
}


def local_folders(runtime_env: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(field, path) of each entry that must be uploaded: everything that is not a URI."""
    return [(field, item) for field, item in _code(runtime_env) if "://" not in item]


def uploaded_folders(runtime_env: Mapping[str, Any]) -> tuple[list[str], bool]:
    """The local folders that a `runtime_env` puts on the cluster's `sys.path`, and whether they are all of its code: we
    cannot look into archives and URIs."""
    folders = [
        item if field == "working_dir" else str(Path(item).parent)
        for field, item in local_folders(runtime_env)
        if Path(item).is_dir()
    ]
    return folders, len(folders) == len(_code(runtime_env))


def _code(runtime_env: Mapping[str, Any]) -> list[tuple[str, str]]:
    given = [("working_dir", runtime_env.get("working_dir") or "")]
    given += [("py_modules", module) for module in runtime_env.get("py_modules") or []]
    return [(field, item) for field, item in given if item]


def with_package(runtime_env: Mapping[str, Any]) -> dict[str, Any]:
    """This `runtime_env` with our package, and cloudpickle for functions sent by value, in front of its `py_modules`:
    what a job needs from us besides `ray[default,data,train]`."""
    ours = [str(Path(__file__).parents[1]), str(Path(cloudpickle.__file__).parent)]
    return {**runtime_env, "py_modules": [*ours, *(runtime_env.get("py_modules") or [])]}


def check_folders(runtime_env: Mapping[str, Any]) -> None:
    """Raise SpecError if a local folder or archive does not exist. The message contains no variable's value."""
    for field, item in local_folders(runtime_env):
        endings = _ARCHIVES[field]
        if not Path(item).is_dir() and not (Path(item).is_file() and item.endswith(endings)):
            raise SpecError(
                f"runtime_env.{field}: got {item!r}, which does not exist; expected a folder, a file that ends in"
                f" {' or '.join(endings)}, or a URI"
            )
