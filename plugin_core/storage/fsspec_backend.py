"""Storage through fsspec: how its filesystems are opened, and how each creates a file only if it is absent."""

from __future__ import annotations

import importlib
import posixpath
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from plugin_core.errors import SpecError
from plugin_core.storage.plugins import STORAGES, plugin
from plugin_core.storage.small_files import check_size
from plugin_core.storage.uris import check_filesystem


@dataclass(frozen=True)
class Kind:
    """An fsspec class, `module:name` of a `package`; `creates`: the `pipe_file` arguments that create a file in one
    request, which fails if the file exists."""

    module: str
    name: str
    package: str
    creates: dict[str, Any]

    def made(self, filesystem: Any) -> bool:
        """Whether a filesystem is an instance of this class, without importing it."""
        return any((kind.__module__, kind.__qualname__) == (self.module, self.name) for kind in type(filesystem).__mro__)


#: The keys under which filesystems report a file's version and modification time.
_TAGS = ("ETag", "etag", "generation")
_TIMES = ("LastModified", "last_modified", "mtime", "updated", "created")


S3 = Kind("s3fs.core", "S3FileSystem", "s3fs", {"mode": "create"})  # If-None-Match: *
# not the class that gcsfs registers: it queries the bucket type over gRPC, and in some buckets its create overwrites an
# existing file
GCS = Kind("gcsfs.core", "GCSFileSystem", "gcsfs", {"mode": "create"})  # ifGenerationMatch=0
AZURE = Kind("adlfs.spec", "AzureBlobFileSystem", "adlfs", {"overwrite": False})  # If-None-Match: *
MEMORY = Kind("fsspec.implementations.memory", "MemoryFileSystem", "fsspec", {"mode": "create"})  # in this process only
#: Scheme → a filesystem known to create atomically. Azure URIs have the form abfs://CONTAINER@ACCOUNT.…/path.
FSSPEC = {"s3fs": S3, "gs": GCS, "gcsfs": GCS, "abfs": AZURE, "adlfs": AZURE, "memory": MEMORY}


def opened(scheme: str, netloc: str, options: dict[str, str], attempts: int) -> Any:
    """The filesystem for a scheme; `attempts`: the S3 client's attempts per request in total."""
    kind = FSSPEC[scheme]
    found: dict[str, Any] = {name: _value(value) for name, value in options.items()}
    if kind is S3:
        found.setdefault("config_kwargs", {"retries": {"mode": "standard", "total_max_attempts": attempts}})
    if kind is AZURE and "@" in netloc:
        found.setdefault("account_name", netloc.partition("@")[2].partition(".")[0])
    try:
        made = getattr(importlib.import_module(kind.module), kind.name)
    except ImportError as exc:
        missing = f"its package is not installed: pip install {kind.package}"
        raise SpecError(f"storage_path: got {scheme}://; {missing}") from exc
    # writes by others must be visible at once
    return made(skip_instance_cache=kind is not MEMORY, use_listings_cache=False, **found)


def _value(value: str) -> Any:
    return {"true": True, "false": False}.get(value.lower(), int(value) if value.isdecimal() else value)


def custom(reference: str, options: dict[str, str]) -> Any:
    """The filesystem that a user's function returns, if the installation allows URIs to call it."""
    check_filesystem(reference)
    module, _, name = reference.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as exc:
        raise SpecError(f"storage_path: got filesystem={reference}; it cannot be imported ({exc})") from exc
    return _checked(function(**options), f"filesystem={reference}")


def added(scheme: str, netloc: str, options: dict[str, str]) -> Any:
    """The filesystem of a plugin's scheme."""
    return _checked(plugin(STORAGES, scheme, "storage_path")(netloc, **options), f"{scheme}://")


def _checked(found: Any, given: str) -> Any:
    import fsspec

    if not isinstance(found, fsspec.AbstractFileSystem):
        raise SpecError(f"storage_path: got {given}, which returns {type(found).__name__}; expected an fsspec filesystem")
    return found


class FsspecFiles:
    """Small files on an fsspec filesystem (see `small_files.SmallFiles`). Each is read with one `cat_file`, up to one byte
    more than its reader accepts: `open` asks for the size first, and by the time it reads that many bytes the file may have
    been replaced."""

    def __init__(self, filesystem: Any):
        self._fs = filesystem
        self._create = creator(filesystem)

    def read(self, path: str, version: str = "", at_most: int | None = None) -> tuple[bytes | None, str]:
        data = self._fs.cat_file(path) if at_most is None else self._begin_of(path, at_most + 1)
        check_size(len(data), at_most)
        return data, ""

    def _begin_of(self, path: str, size: int) -> bytes:
        try:
            data: bytes = self._fs.cat_file(path, start=0, end=size)
        except FileNotFoundError:
            raise
        except Exception:
            # object stores refuse to read a range of an empty file, each with its own error
            if self._fs.info(path)["size"] != 0:
                raise
            return b""
        return data

    def write(self, path: str, data: bytes) -> None:
        self._fs.pipe_file(path, data)

    def create(self, path: str, data: bytes) -> bool | None:
        return self._create(path, data) if self._create is not None else None

    def is_file(self, path: str) -> bool:
        try:
            return bool(self._fs.info(path)["type"] == "file")
        except FileNotFoundError:
            return False

    def names(self, path: str, after: str = "") -> list[str]:
        return [name for name in self._entries(path) if name > after]

    def versions(self, path: str) -> dict[str, str]:
        return {name: self._version(entry) for name, entry in self._entries(path).items()}

    def times(self, path: str) -> dict[str, float]:
        start = len(path.strip("/")) + 1
        found = self._fs.find(path, detail=True).values()
        return {entry["name"].strip("/")[start:]: _time(entry) for entry in found}

    def delete(self, path: str) -> None:
        self._fs.rm(path)

    def delete_dir(self, path: str, last: str = "") -> None:
        entries = self._entries(path) if last else {}
        if last in entries and len(entries) > 1:
            self._fs.rm([entry["name"] for name, entry in entries.items() if name != last], recursive=True)
        self._fs.rm(path, recursive=True)

    def abort_uploads(self, path: str) -> int:
        return 0

    def _entries(self, path: str) -> dict[str, dict[str, Any]]:
        """The entries directly under a path; some filesystems list a file under itself."""
        found = {posixpath.basename(entry["name"].rstrip("/")): entry for entry in self._fs.ls(path, detail=True)}
        return {name: entry for name, entry in found.items() if name}

    def _version(self, entry: dict[str, Any]) -> str:
        if entry["type"] != "file":
            return ""
        told = [str(entry[name]) for name in (*_TAGS, *_TIMES) if entry.get(name) is not None]
        return "-".join((*told, str(entry.get("size")))) if told else str(hash(self._fs.cat_file(entry["name"])))


def _time(entry: dict[str, Any]) -> float:
    """When a file was written, in seconds since the epoch; 0 if its filesystem does not say."""
    told = next((entry[name] for name in _TIMES if entry.get(name) is not None), 0.0)
    if isinstance(told, str):
        told = datetime.fromisoformat(told)
    return told.timestamp() if isinstance(told, datetime) else float(told)


#: fsspec's memory filesystem checks and then stores, which is not atomic.
_memory = threading.Lock()


def creator(filesystem: Any) -> Callable[[str, bytes], bool] | None:
    """A function that creates a file if absent and returns whether it did; None if that is not atomic.

    For an unknown filesystem this is yet to be proven: see `proof`.
    """
    words = _words(filesystem)
    if words is None:
        return None
    lock = _memory if MEMORY.made(filesystem) else nullcontext()

    def create(path: str, data: bytes) -> bool:
        try:
            with lock:
                filesystem.pipe_file(path, data, **words)
        except FileExistsError:
            return False
        except (TypeError, NotImplementedError) as exc:
            raise SpecError(
                f"storage_path: got a filesystem ({type(filesystem).__qualname__}) that cannot create a file only if it is"
                f" absent ({exc}); expected one whose pipe_file() takes mode='create'"
            ) from exc
        return True

    return create


def _words(filesystem: Any) -> dict[str, Any] | None:
    """The `pipe_file` arguments that create a file if absent; None if that would not be atomic."""
    from fsspec import AbstractFileSystem
    from fsspec.asyn import AsyncFileSystem
    from fsspec.implementations.cached import CachingFileSystem
    from fsspec.implementations.dirfs import DirFileSystem

    if isinstance(filesystem, DirFileSystem):
        return _words(filesystem.fs)  # it passes all arguments on
    if isinstance(filesystem, CachingFileSystem):
        return None  # it writes to its own folder first, then overwrites whatever exists
    for known in (S3, GCS, AZURE, MEMORY):
        if known.made(filesystem):
            return known.creates
    kind = type(filesystem)
    if isinstance(filesystem, AsyncFileSystem):
        own = kind._pipe_file is not AsyncFileSystem._pipe_file
    else:
        own = kind.pipe_file is not AbstractFileSystem.pipe_file  # the base class checks, then writes
    return {"mode": "create"} if own else None
