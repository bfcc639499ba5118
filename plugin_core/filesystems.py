"""The filesystems behind URIs: how each is opened, and how it creates a file that must not be there yet.

Options stand in the URI's query. A secret among them is the name of an environment variable, `$NAME`, whose value is put in
where the storage is used.
"""

from __future__ import annotations

import importlib
import inspect
import os
import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from plugin_core.errors import SpecError, StorageError

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

#: Scheme → fsspec's protocol and the package that has it. Azure's are written abfs://CONTAINER@ACCOUNT.…/path.
FSSPEC = {
    "s3fs": ("s3", "s3fs"),
    "gs": ("gs", "gcsfs"),
    "gcsfs": ("gs", "gcsfs"),
    "abfs": ("abfs", "adlfs"),
    "adlfs": ("abfs", "adlfs"),
    "memory": ("memory", "fsspec"),
}
#: Where the first part of a path is a bucket (a container), which is made by somebody else.
BUCKETS = frozenset({"s3", *FSSPEC} - {"memory"})
SCHEMES = ("file", "s3", *FSSPEC, "hdfs", "custom")
#: Times that one S3 request is sent in all. The SDKs' standard strategies wait up to 20 s between two, twice as long each
#: time: twelve bear throttling and 5xx answers for about two minutes. An orchestrator waits by itself, and is told early.
S3_ATTEMPTS, S3_PATIENT_ATTEMPTS = 3, 12
_attempts = S3_ATTEMPTS
_SECRET = re.compile(r"key|secret|token|password|passwd|credential|connection_string|sas", re.IGNORECASE)


@dataclass(frozen=True)
class Backend:
    """A filesystem. `create`: write a file of one request unless it is there, whether it did; None where that is not known
    to be atomic, so that it can hold data, but not runs. `names`: a folder's, where `fs` cannot list it as it is now.
    `errors`: what its operations fail with."""

    fs: FileSystem
    create: Callable[[str, bytes], bool] | None = None
    names: Callable[[str], list[str]] | None = None
    errors: tuple[type[Exception], ...] = (OSError,)


def be_patient(patient: bool = True) -> bool:
    """Whether this process bears, from now on, a storage that throttles or fails for about two minutes a request: for the
    driver, the controller and the workers, where giving up costs a training. Returns whether it did so before."""
    global _attempts
    before, _attempts = _attempts, S3_PATIENT_ATTEMPTS if patient else S3_ATTEMPTS
    if _attempts != before:
        backend.cache_clear()
    return before == S3_PATIENT_ATTEMPTS


def check_uri(uri: str) -> None:
    """Raise SpecError where a URI names no storage of ours, or has a secret in it."""
    parts = urlsplit(uri)
    if parts.scheme not in SCHEMES:
        raise SpecError(f"given {uri!r}; accepted are a local path and the schemes {', '.join(SCHEMES)}")
    azure = FSSPEC.get(parts.scheme, ("",))[0] == "abfs"
    if parts.password or (parts.username and not azure):
        raise SpecError(
            f"given {parts.scheme}://…@{parts.hostname}; credentials do not belong into a URI, accepted are the storage's"
            " usual environment variables"
        )
    for name, value in parse_qsl(parts.query):
        if _SECRET.search(name) and not value.startswith("$"):
            raise SpecError(
                f"given {parts.scheme}://{parts.hostname}?{name}=…; a secret does not belong into a URI, accepted is the"
                f" name of an environment variable, {name}=$NAME"
            )
    if parts.scheme != "file" and not parts.netloc:
        raise SpecError(f"given {uri!r}; accepted is {parts.scheme}://bucket/prefix")
    if parts.scheme == "custom" and "filesystem" not in dict(parse_qsl(parts.query)):
        raise SpecError(f"given {uri!r}; accepted is custom://folder?filesystem=package.module:function")


def path_of(uri: str) -> str:
    """The path that a URI has on its filesystem: `bucket/key`; on HDFS, whose host is no part of it, `/folder/file`."""
    parts = urlsplit(uri)
    if parts.scheme == "hdfs":
        return parts.path.rstrip("/") or "/"
    head = parts.username if parts.username else parts.netloc  # Azure's container
    return (head + parts.path).rstrip("/")


@lru_cache(maxsize=64)
def backend(scheme: str, netloc: str, query: str) -> Backend:
    """The filesystem of a URI's scheme, host and options. Raises SpecError where it cannot be opened."""
    from pyarrow import fs

    if scheme == "":
        return Backend(fs.LocalFileSystem())
    options = _options(query)
    shown = urlunsplit((scheme, netloc, "", query, ""))
    try:
        if scheme == "s3":
            return _s3(netloc, options)
        if scheme == "hdfs":
            return Backend(fs.FileSystem.from_uri(urlunsplit(("hdfs", netloc, "/", urlencode(options), "")))[0])
        if scheme == "custom":
            return _fsspec(_custom(options.pop("filesystem"), options))
        protocol, package = FSSPEC[scheme]
        return _fsspec(_open_fsspec(protocol, package, netloc, options))
    except (OSError, ValueError, TypeError) as exc:
        if isinstance(exc, SpecError):
            raise
        raise SpecError(f"storage_path: given {shown!r}; it cannot be opened ({str(exc).splitlines()[0]})") from exc


def _options(query: str) -> dict[str, str]:
    options = {}
    for name, value in parse_qsl(query):
        if value.startswith("$"):
            if value[1:] not in os.environ:
                raise SpecError(f"storage_path: given {name}={value}; the environment variable {value[1:]} is not set here")
            value = os.environ[value[1:]]
        options[name] = value
    return options


# ---- S3 by pyarrow


def _s3(bucket: str, options: dict[str, str]) -> Backend:
    from pyarrow import fs

    filesystem, _ = fs.FileSystem.from_uri(urlunsplit(("s3", bucket, "", urlencode(_without_keys(options)), "")))
    # a URI has no word for retries; the options it was opened with are what it is pickled as
    _, (opened,) = filesystem.__reduce__()
    keys = {name: options[name] for name in ("access_key", "secret_key", "session_token") if name in options}
    retries = fs.AwsStandardS3RetryStrategy(max_attempts=_attempts)
    client = lru_cache(maxsize=1)(lambda: _s3_client(options))
    return Backend(
        fs.S3FileSystem(**{**opened, **keys}, retry_strategy=retries),
        create=lambda path, data: _s3_create(client(), path, data),
    )


def _without_keys(options: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if not _SECRET.search(name)}


def _s3_client(options: dict[str, str]) -> Any:
    try:
        import boto3
        from botocore.config import Config
    except ImportError as exc:
        raise SpecError("storage_path: s3:// needs boto3: pip install 'ray-train-workflows[s3]'") from exc
    endpoint = options.get("endpoint_override")
    if endpoint and "://" not in endpoint:
        endpoint = f"{options.get('scheme', 'https')}://{endpoint}"
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=options.get("region"),
        aws_access_key_id=options.get("access_key"),
        aws_secret_access_key=options.get("secret_key"),
        aws_session_token=options.get("session_token"),
        config=Config(retries={"mode": "standard", "total_max_attempts": _attempts}),
    )


def _s3_create(client: Any, path: str, data: bytes) -> bool:
    from botocore.exceptions import BotoCoreError, ClientError

    bucket, _, key = path.partition("/")
    try:
        client.put_object(Bucket=bucket, Key=key, Body=data, IfNoneMatch="*")
    except ClientError as exc:
        if exc.response.get("Error", {}).get("Code") in ("PreconditionFailed", "ConditionalRequestConflict"):
            return False
        raise StorageError(f"s3://{path} cannot be created: {exc}") from exc
    except BotoCoreError as exc:
        raise StorageError(f"s3://{path} cannot be created: {exc}") from exc
    return True


# ---- fsspec


def _open_fsspec(protocol: str, package: str, netloc: str, options: dict[str, str]) -> Any:
    import fsspec

    found: dict[str, Any] = {name: _value(value) for name, value in options.items()}
    if protocol == "s3":
        found.setdefault("config_kwargs", {"retries": {"mode": "standard", "total_max_attempts": _attempts}})
    if protocol == "abfs" and "@" in netloc:
        found.setdefault("account_name", netloc.partition("@")[2].partition(".")[0])
    try:
        # what others write has to be seen at once
        return fsspec.filesystem(protocol, skip_instance_cache=protocol != "memory", use_listings_cache=False, **found)
    except ImportError as exc:
        raise SpecError(f"storage_path: given {protocol}://; its package is not installed: pip install {package}") from exc


def _value(value: str) -> Any:
    return {"true": True, "false": False}.get(value.lower(), int(value) if value.isdecimal() else value)


def _custom(reference: str, options: dict[str, str]) -> Any:
    import fsspec

    module, _, name = reference.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as exc:
        raise SpecError(f"storage_path: given filesystem={reference}; it cannot be imported ({exc})") from exc
    found = function(**options)
    if not isinstance(found, fsspec.AbstractFileSystem):
        raise SpecError(
            f"storage_path: given filesystem={reference}, which returns {type(found).__name__}; accepted is a filesystem of"
            " fsspec"
        )
    return found


def _fsspec(filesystem: Any) -> Backend:
    from pyarrow.fs import PyFileSystem

    from plugin_core.fsspec_handler import Handler

    def create(path: str, data: bytes) -> bool:
        try:
            filesystem.pipe_file(path, data, mode="create")
        except FileExistsError:
            return False
        return True

    def names(path: str) -> list[str]:
        found = (posixpath.basename(entry.rstrip("/")) for entry in filesystem.ls(path, detail=False))
        return [name for name in found if name]

    atomic = create if _creates_atomically(filesystem) else None
    return Backend(PyFileSystem(Handler(filesystem)), create=atomic, names=names, errors=(Exception,))


def _creates_atomically(filesystem: Any) -> bool:
    """Whether it has a way of its own to create a file; that of fsspec's base class looks first and writes then."""
    import fsspec
    from fsspec.asyn import AsyncFileSystem

    if isinstance(filesystem, AsyncFileSystem):
        own = type(filesystem)._pipe_file
        return own is not AsyncFileSystem._pipe_file and "mode" in inspect.signature(own).parameters
    return type(filesystem).pipe_file is not fsspec.AbstractFileSystem.pipe_file
