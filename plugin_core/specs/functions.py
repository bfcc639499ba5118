"""How a user's function reaches the cluster.

* A string "package.module:function" goes **by reference**: it is imported on the cluster.
* A callable goes **by value**: pickled with cloudpickle, everything of its own module inside.

Either way the Python modules that its module imports from the user's own folders (found outside site-packages and the
standard library) travel as source files, so `from utils.model import Net` in a flow or DAG file works on a cluster that
has never seen that folder. Which files those are is found by reading import statements, not by importing.
"""

from __future__ import annotations

import importlib
import inspect
import pickle
import re
import symtable
import sys
import threading
import tokenize
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle

from plugin_core.errors import PayloadError
from plugin_core.specs.sources import code_digest, find_without_import, is_users_file


def by_value_name(function: Callable[..., Any]) -> str:
    """How a by-value function stands in a spec's JSON: its name and a digest of its code. Its module's name is left
    out: the same file is `__main__` when run and has another name when an engine loads it."""
    return f"value:{getattr(function, '__qualname__', type(function).__qualname__)}#{code_digest(function)}"


def is_by_value(name: str) -> bool:
    return name.startswith("value:")


#: cloudpickle keeps one list of modules for the whole process, and engines run steps in threads
_PICKLING = threading.Lock()


def pickle_functions(functions: dict[str, Callable[..., Any]]) -> bytes:
    """The by-value functions of a spec, by field name, with their own modules by value."""
    with _PICKLING:
        return _pickled(functions)


def _pickled(functions: dict[str, Callable[..., Any]]) -> bytes:
    registered = []
    already = {"__main__", *cloudpickle.list_registry_pickle_by_value()}
    for module in {sys.modules.get(getattr(function, "__module__", "")) for function in functions.values()}:
        if module and module.__name__ not in already and is_users_file(getattr(module, "__file__", None)):
            cloudpickle.register_pickle_by_value(module)
            registered.append(module)
    try:
        for field, function in functions.items():
            try:
                cloudpickle.dumps(function)
            except Exception as exc:
                raise PayloadError(
                    f"{field}: got the function {getattr(function, '__qualname__', function)!r}, which cannot be pickled"
                    f" because of {_culprit(function)} ({exc}); expected a function that captures only data, or"
                    " 'package.module:function'"
                ) from exc
        return bytes(cloudpickle.dumps(functions))
    finally:
        for module in registered:
            cloudpickle.unregister_pickle_by_value(module)


def unpickle_functions(data: bytes) -> dict[str, Callable[..., Any]]:
    functions: dict[str, Callable[..., Any]] = pickle.loads(data)
    return functions


def import_function(field: str, reference: str) -> Callable[..., Any]:
    """The function that a by-reference string names, imported here."""
    module_name, _, attribute = reference.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as exc:
        raise PayloadError(f"{field}: got {reference!r}, which cannot be imported ({exc})") from exc
    if not callable(found):
        raise PayloadError(f"{field}: got {reference!r}, which is no function but a {type(found).__name__}")
    result: Callable[..., Any] = found
    return result


def _missing(module_name: str) -> str:
    """Why a module was not found. Names the package that was searched: another of the same name may hide the right one."""
    package = module_name.partition(".")[0]
    found = find_without_import(package) if package != module_name else None
    where = "" if found is None else f"; {package!r} is {found.origin or list(found.submodule_search_locations or [])}"
    return f"no module named {module_name!r} here{where}"


def check_reference(field: str, reference: str, *, must_exist: bool) -> None:
    """Look a by-reference function up without importing its module (which may be slow, or need a GPU).

    `must_exist`: the module has to be found here, since the cluster shares this environment.
    """
    module_name, _, attribute = reference.partition(":")
    found = find_without_import(module_name)
    if found is None:
        if must_exist:
            raise PayloadError(f"{field}: got {reference!r}, which cannot be imported ({_missing(module_name)})")
        return
    if found.origin and found.origin.endswith(".py"):
        try:
            names = _top_level_names(_source(Path(found.origin)), found.origin)
        except (UnicodeDecodeError, LookupError, ValueError, RecursionError, MemoryError) as exc:
            # not UTF-8, an unknown encoding, a NUL, an expression without an end
            raise PayloadError(
                f"{field}: got {reference!r}, which cannot be imported ({found.origin} is no Python source: {exc})"
            ) from exc
        except SyntaxError as exc:
            raise PayloadError(
                f"{field}: got {reference!r}, which cannot be imported ({found.origin}, line {exc.lineno}: {exc.msg})"
            ) from exc
        if attribute.split(".")[0] not in names and "*" not in names:
            raise PayloadError(f"{field}: got {reference!r}, which cannot be imported ({module_name} has no {attribute!r})")


def call_with(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a user's function with as many of the positional arguments as it takes."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return function(*arguments)
    takes = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return function(*arguments[: len(takes)])


def _culprit(function: Callable[..., Any]) -> str:
    """The captured object (closure or global) that cannot be pickled, by name."""
    try:
        captured = inspect.getclosurevars(function)
        values = {**captured.globals, **captured.nonlocals}
    except (TypeError, ValueError):
        values = {}
    for name, value in values.items():
        try:
            cloudpickle.dumps(value)
        except Exception:  # noqa: BLE001 - a user's __reduce__ may raise anything
            return f"the captured object {name!r} of type {type(value).__name__}"
    return "something it captures"


def _source(file: Path) -> str:
    """Decoded as Python does it: by its coding line or byte order mark, else as UTF-8."""
    with tokenize.open(file) as stream:
        return stream.read()


def _top_level_names(source: str, file: str) -> set[str]:
    # not by `ast`: two threads that build a tree at once can break each other in CPython 3.11
    table = symtable.symtable(source, file, "exec")
    names = {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()}
    return names | ({"*"} if re.search(r"^from .+ import \*", source, re.MULTILINE) else set())
