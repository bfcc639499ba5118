"""The filesystems behind URIs: how each is opened, and how it creates a file that must not be there yet.

Options stand in the URI's query. A secret among them is the name of an environment variable, `$NAME`, whose value is put in
where the storage is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from plugin_core.errors import SpecError
from plugin_core.storage import fsspec_backend, s3_backend
from plugin_core.storage.fsspec_backend import FSSPEC
from plugin_core.storage.local_backend import LocalFiles
from plugin_core.storage.small_files import SmallFiles
from plugin_core.storage.uris import unquoted, variable

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

#: Where the first part of a path is a bucket (a container), which is made by somebody else.
BUCKETS = frozenset({"s3", *FSSPEC} - {"memory"})
#: Times that one S3 request is sent in all. The SDKs' standard strategies wait up to 20 s between two, twice as long each
#: time: twelve bear throttling and 5xx answers for about two minutes. An orchestrator waits by itself, and is told early.
S3_ATTEMPTS, S3_PATIENT_ATTEMPTS = 3, 12
_attempts = S3_ATTEMPTS


@dataclass(frozen=True)
class Backend:
    """A filesystem for files of any size; `files` are small ones of the same storage. `errors`: what both fail with.
    `has_folders`: whether a folder has to be made before there is something in it."""

    fs: FileSystem
    files: SmallFiles
    errors: tuple[type[Exception], ...] = (OSError,)
    has_folders: bool = True


def be_patient(patient: bool = True) -> bool:
    """Whether this process bears, from now on, a storage that throttles or fails for about two minutes a request: for the
    driver, the controller and the workers, where giving up costs a training. Returns whether it did so before."""
    global _attempts
    before, _attempts = _attempts, S3_PATIENT_ATTEMPTS if patient else S3_ATTEMPTS
    if _attempts != before:
        backend.cache_clear()
    return before == S3_PATIENT_ATTEMPTS


def path_of(uri: str) -> str:
    """The path that a URI has on its filesystem: `bucket/key`."""
    parts = urlsplit(uri)
    head = parts.username if parts.username else parts.netloc  # Azure's container
    return (head + unquoted(parts.path)).rstrip("/")


@lru_cache(maxsize=64)
def backend(scheme: str, netloc: str, query: str) -> Backend:
    """The filesystem of a URI's scheme, host and options. Raises SpecError where it cannot be opened."""
    from pyarrow import fs

    if scheme == "":
        return Backend(fs.LocalFileSystem(), LocalFiles())
    options = _options(query)
    shown = urlunsplit((scheme, netloc, "", query, ""))
    try:
        if scheme == "s3":
            return _s3(netloc, options)
        if scheme == "custom":
            return _fsspec(fsspec_backend.custom(options.pop("filesystem"), options))
        return _fsspec(fsspec_backend.opened(scheme, netloc, options, _attempts))
    except (OSError, ValueError, TypeError) as exc:
        if isinstance(exc, SpecError):
            raise
        raise SpecError(f"storage_path: got {shown!r}; it cannot be opened ({str(exc).splitlines()[0]})") from exc


def _options(query: str) -> dict[str, str]:
    given = parse_qsl(query)
    return {name: variable(name, value[1:]) if value.startswith("$") else value for name, value in given}


def _s3(bucket: str, options: dict[str, str]) -> Backend:
    filesystem, objects = s3_backend.opened(bucket, options, _attempts)
    return Backend(filesystem, objects, objects.errors(), has_folders=False)


def _fsspec(filesystem: Any) -> Backend:
    from pyarrow.fs import PyFileSystem

    from plugin_core.storage.fsspec_handler import Handler

    return Backend(PyFileSystem(Handler(filesystem)), fsspec_backend.FsspecFiles(filesystem), (Exception,))
