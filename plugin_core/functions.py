"""How a user's function reaches the cluster.

* A string "package.module:function" goes **by reference**: it is imported on the cluster.
* A callable goes **by value**: pickled with cloudpickle, everything of its own module inside.

Either way the Python modules that its module imports from the user's own folders (found outside site-packages and the
standard library) travel as source files, so `from utils.model import Net` in a flow or DAG file works on a cluster that
has never seen that folder. Which files those are is found by reading import statements, not by importing.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import io
import pickle
import site
import sys
import sysconfig
import types
import zipfile
from collections.abc import Callable, Iterable
from importlib.machinery import ModuleSpec, PathFinder
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any

import cloudpickle

from plugin_core.errors import PayloadError

#: installed on the cluster in its own right, so never shipped
_OURS = {"plugin_core", "prefect_integration", "airflow_provider"}


def by_value_name(function: Callable[..., Any]) -> str:
    """How a by-value function stands in a spec's JSON: its name and a digest of its code. Its module's name is left
    out: the same file is `__main__` when run and has another name when an engine loads it."""
    return f"value:{getattr(function, '__qualname__', type(function).__qualname__)}#{code_digest(function)}"


def is_by_value(name: str) -> bool:
    return name.startswith("value:")


def pickle_functions(functions: dict[str, Callable[..., Any]]) -> bytes:
    """The by-value functions of a spec, by field name, with their own modules by value."""
    registered = []
    already = {"__main__", *cloudpickle.list_registry_pickle_by_value()}
    for module in {sys.modules.get(getattr(function, "__module__", "")) for function in functions.values()}:
        if module and module.__name__ not in already and _is_users_file(getattr(module, "__file__", None)):
            cloudpickle.register_pickle_by_value(module)
            registered.append(module)
    try:
        for field, function in functions.items():
            try:
                cloudpickle.dumps(function)
            except Exception as exc:
                raise PayloadError(
                    f"{field}: given the function {getattr(function, '__qualname__', function)!r}, which cannot be pickled"
                    f" because of {_culprit(function)} ({exc}); accepted is a function that captures only data, or"
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
        raise PayloadError(f"{field}: given {reference!r}, which cannot be imported ({exc})") from exc
    if not callable(found):
        raise PayloadError(f"{field}: given {reference!r}, which is no function but a {type(found).__name__}")
    result: Callable[..., Any] = found
    return result


def check_reference(field: str, reference: str, *, must_exist: bool) -> None:
    """Look a by-reference function up without importing its module (which may be slow, or need a GPU).

    `must_exist`: the module has to be found here, since the cluster shares this environment.
    """
    module_name, _, attribute = reference.partition(":")
    found = _find_without_import(module_name)
    if found is None:
        if must_exist:
            raise PayloadError(
                f"{field}: given {reference!r}, which cannot be imported (no module named {module_name!r} here)"
            )
        return
    if found.origin and found.origin.endswith(".py"):
        try:
            names = _top_level_names(ast.parse(Path(found.origin).read_text()))
        except SyntaxError as exc:
            raise PayloadError(
                f"{field}: given {reference!r}, which cannot be imported ({found.origin}, line {exc.lineno}: {exc.msg})"
            ) from exc
        if attribute.split(".")[0] not in names and "*" not in names:
            raise PayloadError(
                f"{field}: given {reference!r}, which cannot be imported ({module_name} has no {attribute!r})"
            )


def local_sources(functions: Iterable[Callable[..., Any] | str]) -> dict[str, bytes]:
    """The user's own modules that these functions need, as relative file name → source."""
    sources: dict[str, bytes] = {}
    for function in functions:
        if isinstance(function, str):
            found = _find_without_import(function.partition(":")[0])
            file, module_name = (found.origin if found else None), function.partition(":")[0]
        else:
            module = sys.modules.get(getattr(function, "__module__", "") or "")
            file, module_name = getattr(module, "__file__", None), getattr(module, "__name__", "")
        if not _is_users_file(file) or not file:
            continue
        roots = _search_path(Path(file), module_name)
        finder = ModuleFinder(path=[str(root) for root in roots])
        finder.run_script(file)
        files = [
            Path(path) for name, m in finder.modules.items() if name != "__main__" and (path := vars(m).get("__file__"))
        ]
        if isinstance(function, str):
            files += _package_files(Path(file), module_name)
        for path in files:
            root = next((root for root in roots if path.is_relative_to(root)), None)
            relative = path.relative_to(root).as_posix() if root else ""
            if root and relative.split("/")[0].removesuffix(".py") not in _OURS and _is_users_file(str(path)):
                sources[relative] = path.read_bytes()
    return sources


def pack(sources: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(sources):
            archive.writestr(zipfile.ZipInfo(name), sources[name])
    return buffer.getvalue()


def unpack(data: bytes, directory: Path) -> list[str]:
    """Unpack shipped sources; returns the top-level modules and packages, as Ray's `py_modules` wants them."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        archive.extractall(directory)
    return sorted(str(path) for path in directory.iterdir())


def sources_digest(sources: dict[str, bytes]) -> str:
    """A digest that comments and blank lines do not change."""
    lines = [f"{name} {ast.dump(ast.parse(sources[name]))}" for name in sorted(sources)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16] if lines else ""


def code_digest(function: Callable[..., Any]) -> str:
    """A digest of what a function does: its bytecode, constants, defaults, captured values, and those of its own
    module's functions and classes it refers to. Pickle bytes differ from process to process; this does not."""
    seen: set[int] = set()
    parts: list[str] = []

    def visit(value: Any, module: str | None) -> None:
        if isinstance(value, (types.FunctionType, type)) and id(value) in seen:
            return
        if isinstance(value, types.FunctionType):
            seen.add(id(value))
            visit(value.__code__, module)
            visit([value.__defaults__, value.__kwdefaults__], module)
            visit([cell.cell_contents for cell in value.__closure__ or ()], module)
            for name in sorted(_names(value.__code__)):
                target = value.__globals__.get(name)
                parts.append(name)
                if getattr(target, "__module__", None) == module or not hasattr(target, "__module__"):
                    visit(target, module)
        elif isinstance(value, types.CodeType):
            parts.append(value.co_code.hex() + repr(value.co_names) + repr(value.co_varnames))
            visit(list(value.co_consts), module)
        elif isinstance(value, type):
            seen.add(id(value))
            parts.append(value.__qualname__)
            if value.__module__ == module:
                for name in sorted(vars(value)):
                    if name not in ("__doc__", "__dict__", "__weakref__", "__module__", "__firstlineno__"):
                        visit(inspect.unwrap(getattr(value, name)) if callable(getattr(value, name)) else None, module)
        elif isinstance(value, types.ModuleType):
            parts.append(value.__name__)
        elif isinstance(value, (list, tuple)):
            for item in value:
                visit(item, module)
        elif isinstance(value, dict):
            for key in sorted(value, key=repr):
                parts.append(repr(key))
                visit(value[key], module)
        elif isinstance(value, (int, float, str, bytes, bool, type(None), complex)):
            parts.append(repr(value))
        elif isinstance(value, frozenset):
            parts.append(repr(sorted(map(repr, value))))
        else:
            parts.append(f"{type(value).__module__}.{type(value).__qualname__}")

    visit(getattr(function, "__func__", function), getattr(function, "__module__", None))
    return hashlib.sha256("\x00".join(parts).encode()).hexdigest()[:16]


def call_with(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a user's function with as many of the positional arguments as it takes."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return function(*arguments)
    takes = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return function(*arguments[: len(takes)])


def _names(code: types.CodeType) -> set[str]:
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return set(code.co_names).union(*(_names(const) for const in inner))


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


def _is_users_file(file: str | None) -> bool:
    """Whether a file is the user's own: outside the standard library and site-packages."""
    if not file or file.startswith("<"):
        return False
    path = Path(file).resolve()
    return not any(path.is_relative_to(folder) for folder in _installed_folders())


def _installed_folders() -> set[Path]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return {
        *(Path(sysconfig.get_path(name)).resolve() for name in names),
        *(Path(folder).resolve() for folder in [*site.getsitepackages(), site.getusersitepackages()]),
    }


def _search_path(file: Path, module_name: str) -> list[Path]:
    """Where the user's module finds its neighbours: its root folder, then the user's folders on sys.path."""
    depth = module_name.count(".") if (file.parent / "__init__.py").exists() or "." in module_name else 0
    root = file.resolve().parents[depth + (1 if file.name == "__init__.py" else 0)]
    folders = [root, *(Path(entry).resolve() for entry in sys.path if entry and Path(entry).is_dir())]
    return list(dict.fromkeys(folder for folder in folders if _is_users_file(str(folder / "x.py"))))


def _package_files(file: Path, module_name: str) -> list[Path]:
    """A by-reference module's own file and the `__init__.py` of the packages around it."""
    depth = module_name.count(".") if file.name != "__init__.py" else module_name.count(".") + 1
    parents = list(file.resolve().parents)[:depth]
    return [file.resolve(), *(init for parent in parents if (init := parent / "__init__.py").exists())]


def _find_without_import(module_name: str) -> ModuleSpec | None:
    """A module's spec, walking down the packages without importing any of them."""
    path: Iterable[str] | None = None
    found: ModuleSpec | None = None
    sofar = ""
    for part in module_name.split("."):
        sofar = f"{sofar}.{part}" if sofar else part
        found = PathFinder.find_spec(sofar, list(path) if path is not None else ["", *sys.path])
        if found is None:
            if path is None and (part in sys.builtin_module_names or part in sys.modules):
                return getattr(sys.modules.get(module_name), "__spec__", None)
            return None
        path = found.submodule_search_locations or []
    return found


def _top_level_names(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
    return names
