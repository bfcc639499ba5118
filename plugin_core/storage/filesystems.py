"""The filesystems behind URIs: how each is opened, and how each creates a file only if it is absent.

Options are in the URI's query. A secret option names an environment variable, `$NAME`, which is resolved where the storage
is used.
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

#: Schemes whose paths begin with a bucket (a container), which we never create.
BUCKETS = frozenset({"s3", *FSSPEC} - {"memory"})
#: Attempts per S3 request in total. The SDKs' standard strategies back off exponentially, up to 20 s: twelve attempts
#: survive throttling and 5xx responses for about two minutes. An orchestrator does its own waiting and wants to fail fast.
S3_ATTEMPTS, S3_PATIENT_ATTEMPTS = 3, 12
_attempts = S3_ATTEMPTS


@dataclass(frozen=True)
class Backend:
    """A filesystem for files of any size; `files` handles small ones on the same storage. `errors`: what both raise.
    `has_folders`: whether a folder must be created before files in it."""

    fs: FileSystem
    files: SmallFiles
    errors: tuple[type[Exception], ...] = (OSError,)
    has_folders: bool = True


def be_patient(patient: bool = True) -> bool:
    """Set whether this process retries each request to a throttling or failing storage for about two minutes.

    For the driver, the controller and the workers, where giving up costs a training. Returns the previous setting.
    """
    global _attempts
    before, _attempts = _attempts, S3_PATIENT_ATTEMPTS if patient else S3_ATTEMPTS
    if _attempts != before:
        backend.cache_clear()
    return before == S3_PATIENT_ATTEMPTS


def path_of(uri: str) -> str:
    """A URI's path on its filesystem: `bucket/key`."""
    parts = urlsplit(uri)
    head = parts.username if parts.username else parts.netloc  # Azure's container
    return (head + unquoted(parts.path)).rstrip("/")


@lru_cache(maxsize=64)
def backend(scheme: str, netloc: str, query: str) -> Backend:
    """The filesystem for a URI's scheme, host and options. Raises SpecError if it cannot be opened."""
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
        if scheme not in FSSPEC:
            return _fsspec(fsspec_backend.added(scheme, netloc, options))
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
