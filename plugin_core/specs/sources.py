"""The user's code: which source files are shipped with a step."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import os
import site
import subprocess
import sys
import sysconfig
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import distributions
from modulefinder import Module, ModuleFinder
from pathlib import Path
from typing import Any

from plugin_core.specs.code_digest import innermost

#: installed on the cluster, so never shipped
_OURS = {"plugin_core", "prefect_integration", "airflow_provider"}
#: modulefinder's constant for a package folder
_PKG_DIRECTORY = 5
#: modulefinder empties the process's caches of imports, in CPython 3.11 without regard for other threads that do
_TRACING = threading.Lock()


class _Finder(ModuleFinder):
    """A ModuleFinder that supports packages without an `__init__.py`; the standard library's fails on them."""

    def follow(self, file: Path, module_name: str) -> None:
        """Find what a module imports. In a package, it is treated as a member, since it may use relative imports."""
        if "." in module_name:
            with contextlib.suppress(ImportError):  # an engine may have loaded the file under another name
                self.import_hook(module_name)
                return
        if file.suffix == ".py":
            self.run_script(str(file))

    def find_module(self, name: str, path: Any, parent: Any = None) -> Any:
        found = PathFinder.find_spec(name, path or self.path)
        if found is None and path is None and (hooked := _hooked(name)) and is_users_file(hooked.origin):
            self.path.append(str(_root_of(Path(str(hooked.origin)), name)))
        if found is not None and found.origin is None and found.submodule_search_locations:
            return None, next(iter(found.submodule_search_locations)), ("", "", _PKG_DIRECTORY)
        return super().find_module(name, path, parent)

    def determine_parent(self, caller: Any, level: int = -1) -> Any:
        try:
            return super().determine_parent(caller, level)
        except ImportError:  # a script that also runs as a module: it tries a relative import, then an absolute one
            return Module("a package that is not there")

    def load_module(self, fqname: str, fp: Any, pathname: str, file_info: Any) -> Any:
        try:
            return super().load_module(fqname, fp, pathname, file_info)
        except SyntaxError:  # shipped as is: whoever imports it on the cluster sees the error
            module: Any = self.add_module(fqname)
            module.__file__ = pathname
            return module

    def load_package(self, fqname: str, pathname: str) -> Any:
        if Path(pathname, "__init__.py").exists():
            return super().load_package(fqname, pathname)
        package: Any = self.add_module(fqname)
        package.__path__ = [pathname]
        return package


def local_sources(functions: Iterable[Callable[..., Any] | str], uploaded: Sequence[str] = ()) -> dict[str, bytes]:
    """The user's own modules that these functions need, as relative file name → source. `uploaded`: as in `find_module`."""
    sources: dict[str, bytes] = {}
    for function in functions:
        if isinstance(function, str):
            module_name = function.partition(":")[0]
            found = find_module(module_name, uploaded)
            file = found.origin if found else None
        else:
            module = module_of(function)
            file, module_name = getattr(module, "__file__", None), getattr(module, "__name__", "")
            # `python -m package.module` calls it __main__
            module_name = getattr(getattr(module, "__spec__", None), "name", module_name)
        if is_users_file(file) and file:
            with _unpacked(Path(file)) as place:
                if place.is_file():  # it may have been deleted; a function can be sent without it
                    sources.update(_traced(place, module_name, itself=isinstance(function, str)))
    return sources


def module_of(function: Callable[..., Any]) -> Any:
    """The module that defines a function, also one that a partial calls; None if it is not loaded."""
    return sys.modules.get(getattr(innermost(function), "__module__", "") or "")


@contextlib.contextmanager
def _unpacked(file: Path) -> Iterator[Path]:
    """A module's file; a temporary copy if it is in a zip archive, as in Airflow's packaged DAGs."""
    archive = next((parent for parent in file.parents if parent.is_file()), None)
    if archive is None:
        yield file
        return
    with tempfile.TemporaryDirectory(prefix="raytrain-code-") as folder, zipfile.ZipFile(archive) as packed:
        packed.extractall(folder, [name for name in packed.namelist() if name.endswith(".py")])
        yield Path(folder, file.relative_to(archive))


def _traced(file: Path, module_name: str, itself: bool) -> dict[str, bytes]:
    """The user's modules that a module imports, by relative file name; with `itself`, it and its packages too."""
    folders = [str(folder) for folder in _search_path(file, module_name)]
    # never shipped, so not traced either: in a checkout, our packages are in the user's folders
    finder = _Finder(path=folders, excludes=sorted(_OURS))
    with _TRACING:
        finder.follow(file, module_name)
    files = {}
    for name, found in finder.modules.items():
        if name != "__main__" and (path := vars(found).get("__file__")):
            # not relative to a folder of `sys.path`: these may lie in one another
            files["/".join([*_folders_of(name, path), Path(path).name])] = Path(path)
    if itself:
        root = _root_of(file, module_name)
        files |= {path.relative_to(root).as_posix(): path for path in _package_files(file, module_name)}
    return {
        name: path.read_bytes()
        for name, path in files.items()
        if any(path.is_relative_to(folder) for folder in finder.path)
        and name.split("/")[0].removesuffix(".py") not in _OURS
        and is_users_file(str(path))
    }


def _folders_of(module_name: str, path: str) -> list[str]:
    """The names of the packages that a module's file is in, itself if it is one."""
    names = module_name.split(".")
    return names if Path(path).name.startswith("__init__.") else names[:-1]


def pack(sources: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(sources):
            archive.writestr(zipfile.ZipInfo(name), sources[name])
    return buffer.getvalue()


def unpack(data: bytes, directory: Path, uploaded: Iterable[str] = ()) -> list[str]:
    """Unpack shipped sources; returns the top-level modules and packages, as Ray's `py_modules` expects them.

    Leaves out those that one of the folders in `uploaded` has too, file by file. It may have more of a package: modules
    that are imported by a computed name, and data. The shipped part would hide them.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for _, group in itertools.groupby(sorted(archive.namelist()), lambda name: name.split("/")[0]):
            names = list(group)
            if not any(all(_has(Path(folder, name), archive.read(name)) for name in names) for folder in uploaded):
                archive.extractall(directory, names)
    return sorted(str(path) for path in directory.iterdir())


def _has(file: Path, content: bytes) -> bool:
    return file.is_file() and file.read_bytes() == content


def is_users_file(file: str | None) -> bool:
    """Whether a file is the user's own: outside the standard library, site-packages (a .pth file may add some) and what
    `pip install --target` put into another folder."""
    if not file or file.startswith("<") or file in ("built-in", "frozen"):
        return False
    path = Path(file).resolve()
    if {"site-packages", "dist-packages"}.intersection(path.parts):
        return False
    if any(path.is_relative_to(folder) for folder in _installed_folders()):
        return False
    folders = {Path(entry).resolve() for entry in sys.path if entry}.intersection(path.parents)
    there = (each for each in folders if each.exists())
    return not any(path.relative_to(each).parts[0] in _installed_in(each, each.stat().st_mtime_ns) for each in there)


@functools.lru_cache(maxsize=32)
def _installed_in(folder: Path, _changed_ns: int) -> frozenset[str]:
    """The modules and packages that pip installed into a folder, according to the records it left there."""
    records = [record for each in distributions(path=[str(folder)]) if (record := each.read_text("RECORD"))]
    return frozenset(line.partition(",")[0].partition("/")[0] for record in records for line in record.splitlines())


def _installed_folders() -> set[Path]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return {
        *(Path(sysconfig.get_path(name)).resolve() for name in names),
        *(Path(folder).resolve() for folder in [*site.getsitepackages(), site.getusersitepackages()]),
        # site-packages of other environments, which a .pth file may add
        *(Path(entry).resolve() for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")),
    }


def _search_path(file: Path, module_name: str) -> list[Path]:
    """Where the user's module finds its local imports: its root folder, then the user's folders on sys.path."""
    folders = [_root_of(file, module_name), *(Path(entry).resolve() for entry in sys.path if Path(entry).is_dir())]
    return list(dict.fromkeys(folder for folder in folders if is_users_file(str(folder / "x.py"))))


def _root_of(file: Path, module_name: str) -> Path:
    """The folder that a module's full name starts from."""
    return file.resolve().parents[module_name.count(".") + (1 if file.name == "__init__.py" else 0)]


def _package_files(file: Path, module_name: str) -> list[Path]:
    """A by-reference module's own file and the `__init__.py` of the packages around it."""
    root = _root_of(file, module_name)
    parents = itertools.takewhile(lambda parent: parent != root, file.resolve().parents)
    return [file.resolve(), *(init for parent in parents if (init := parent / "__init__.py").exists())]


def find_module(module_name: str, uploaded: Sequence[str] = ()) -> ModuleSpec | None:
    """The spec of the module that the cluster imports by this name, as far as this process can tell. `uploaded`: the
    local folders of the step's `runtime_env`. They come first: this process may have another module of that name."""
    return find_without_import(module_name, uploaded) or find_without_import(module_name)


def find_without_import(module_name: str, folders: Sequence[str] | None = None) -> ModuleSpec | None:
    """A module's spec, found by walking down its packages without importing them: only in these folders or, with None,
    wherever this process would import it from."""
    path: Iterable[str] | None = folders
    found: ModuleSpec | None = None
    sofar = ""
    for part in module_name.split("."):
        sofar = f"{sofar}.{part}" if sofar else part
        found = PathFinder.find_spec(sofar, list(path) if path is not None else [*sys.path, ""])
        if found is None and path is None:
            found = _hooked(sofar)
        if found is None:
            if path is None and part in sys.modules:
                return getattr(sys.modules.get(module_name), "__spec__", None)
            return None
        path = found.submodule_search_locations or []
    return found


def _hooked(name: str) -> ModuleSpec | None:
    """The spec of a top-level module that is not on `sys.path`: a built-in one, or a package that pip installed in editable
    mode, for which some build systems use an import hook."""
    others = (getattr(finder, "find_spec", None) for finder in sys.meta_path if finder is not PathFinder)
    return next((found for find in others if find is not None and (found := find(name, None)) is not None), None)


@functools.cache
def git_commit() -> dict[str, str]:
    """The commit of this process's code, for trackers: GIT_COMMIT, else git's HEAD in the working directory."""
    commit = os.environ.get("GIT_COMMIT", "")
    if not commit:
        try:
            done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5)
        except (OSError, subprocess.TimeoutExpired):
            return {}
        commit = done.stdout.strip() if done.returncode == 0 else ""
    return {"git_commit": commit} if commit else {}
