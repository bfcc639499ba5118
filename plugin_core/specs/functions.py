"""Send a user's function to the cluster.

* A string "package.module:function" is sent **by reference**: it is imported on the cluster.
* A callable is sent **by value**: pickled with cloudpickle, including everything from its own module.

In both cases the modules that its module imports from the user's own folders (outside site-packages and the standard
library) are shipped as source files, so `from utils.model import Net` in a flow or DAG file works on a cluster without that
folder. These files are found by parsing import statements, not by importing.
"""

from __future__ import annotations

import importlib
import inspect
import pickle
import re
import symtable
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import decode_source
from typing import Any

import cloudpickle

from plugin_core.errors import PayloadError
from plugin_core.specs.code_digest import code_digest
from plugin_core.specs.function_arguments import accepted
from plugin_core.specs.sources import find_module, find_without_import, is_users_file, module_of


def by_value_name(function: Callable[..., Any]) -> str:
    """A by-value function in a spec's JSON: its name and a digest of its code. The module's name is left out: the same file
    is `__main__` when run as a script and has a different name when an engine loads it."""
    return f"value:{getattr(function, '__qualname__', type(function).__qualname__)}#{code_digest(function)}"


def is_by_value(name: str) -> bool:
    return name.startswith("value:")


#: cloudpickle's module registry is global to the process, and engines run steps in threads
_PICKLING = threading.Lock()


def pickle_functions(functions: dict[str, Callable[..., Any]]) -> bytes:
    """Pickle a spec's by-value functions, by field name, with their modules by value."""
    with _PICKLING:
        return _pickled(functions)


def _pickled(functions: dict[str, Callable[..., Any]]) -> bytes:
    registered = []
    already = {"__main__", *cloudpickle.list_registry_pickle_by_value()}
    for module in set(map(module_of, functions.values())):
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
    """Import the function that a by-reference string names."""
    module_name, _, attribute = reference.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as exc:
        raise PayloadError(f"{field}: got {reference!r}, which cannot be imported ({exc})") from exc
    except SystemExit as exc:
        why = "whose module calls sys.exit when it is imported; expected one that does not"
        raise PayloadError(f"{field}: got {reference!r}, {why}") from exc
    if not callable(found):
        raise PayloadError(f"{field}: got {reference!r}, a {type(found).__name__}; expected a function")
    result: Callable[..., Any] = found
    return result


def _missing(module_name: str) -> str:
    """Why a module was not found. Names the package that was searched: it may shadow the right one of the same name."""
    package = module_name.partition(".")[0]
    found = find_without_import(package) if package != module_name else None
    where = "" if found is None else f"; {package!r} is {found.origin or list(found.submodule_search_locations or [])}"
    return f"no module named {module_name!r} here{where}"


def check_reference(
    field: str, reference: str, *, must_exist: bool, may_be_class: bool = True, uploaded: Sequence[str] = ()
) -> None:
    """Look up a by-reference function without importing its module (which may be slow, or need a GPU).

    `must_exist`: the module must be found here, because the cluster shares this environment. `uploaded`: as in
    `find_module`.
    """
    module_name, _, attribute = reference.partition(":")
    found = find_module(module_name, uploaded)
    if found is None:
        if must_exist:
            raise PayloadError(f"{field}: got {reference!r}, which cannot be imported ({_missing(module_name)})")
        return
    if found.origin and found.origin.endswith(".py"):
        try:
            names, classes = _top_level_names(_source(found), found.origin)
        except (UnicodeDecodeError, LookupError, ValueError, RecursionError, MemoryError) as exc:
            # not UTF-8, an unknown encoding, a NUL, an endless expression
            raise PayloadError(
                f"{field}: got {reference!r}, which cannot be imported ({found.origin} is not valid Python: {exc})"
            ) from exc
        except SyntaxError as exc:
            raise PayloadError(
                f"{field}: got {reference!r}, which cannot be imported ({found.origin}, line {exc.lineno}: {exc.msg})"
            ) from exc
        if attribute.split(".")[0] not in names and names.isdisjoint(("*", "__getattr__")):
            raise PayloadError(f"{field}: got {reference!r}, which cannot be imported ({module_name} has no {attribute!r})")
        if attribute in classes and not may_be_class:
            raise PayloadError(f"{field}: got the class {reference!r}; expected a function")


def call_with(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a user's function with as many of the positional arguments as it accepts."""
    return function(*accepted(inspect.signature(function), arguments))


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


def _source(module: ModuleSpec) -> str:
    """Decode a module's source as Python does: by its coding line or byte order mark, else as UTF-8."""
    loader: Any = module.loader  # of a file, or of a member of a zip archive
    return decode_source(loader.get_data(module.origin))


def _top_level_names(source: str, file: str) -> tuple[set[str], set[str]]:
    """The names that a module defines, and those that are classes."""
    # not `ast`: in CPython 3.11, threads that build trees concurrently can break each other
    table = symtable.symtable(source, file, "exec")
    names = {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()}
    classes = {child.get_name() for child in table.get_children() if child.get_type() == "class"}
    return names | ({"*"} if re.search(r"^from .+ import \*", source, re.MULTILINE) else set()), classes
