"""A URI as a place on persistent storage, with the few operations a run directory needs.

Reading and listing go through `pyarrow.fs`. Two writes need more than it offers and are one function per scheme here:
*create if absent* (local: a hard link of a finished file; S3: a conditional put) and *atomic replace* (local: rename; an
S3 put is atomic by itself). "Cannot be read" is never "absent": only a definite not-found gives None.
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from plugin_core.errors import SpecError, StorageError

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

SCHEMES = ("file", "s3")
#: Times that one S3 request is sent in all. The SDKs' standard strategies wait up to 20 s between two, twice as long each
#: time: twelve bear throttling and 5xx answers for about two minutes. An orchestrator waits by itself, and is told early.
S3_ATTEMPTS, S3_PATIENT_ATTEMPTS = 3, 12
_attempts = S3_ATTEMPTS


def default_storage_path() -> str:
    """`RAY_STORAGE`, then `~/ray_results`, as Ray's users know it."""
    return os.environ.get("RAY_STORAGE") or str(Path.home() / "ray_results")


def normalise(uri: str) -> str:
    """A local path made absolute (also from `file://`), another URI as it is. Raises SpecError where it is no place."""
    if not uri:
        raise SpecError("given ''; accepted is a local path or a URI")
    if "://" not in uri:
        return str(Path(uri).expanduser().absolute())
    parts = urlsplit(uri)
    if parts.scheme not in SCHEMES:
        raise SpecError(f"given {uri!r}; accepted are a local path and the schemes {', '.join(SCHEMES)}")
    if parts.username or parts.password:
        raise SpecError(
            f"given {parts.scheme}://…@{parts.hostname}; credentials do not belong into a URI, accepted are the storage's"
            " usual environment variables"
        )
    if parts.scheme == "file":
        return parts.path
    if not parts.netloc:
        raise SpecError(f"given {uri!r}; accepted is {parts.scheme}://bucket/prefix")
    return uri


def be_patient() -> None:
    """From now on this process bears a storage that throttles or fails for about two minutes a request: for the driver, the
    controller and the workers, where giving up costs a training."""
    global _attempts
    if _attempts != S3_PATIENT_ATTEMPTS:
        _attempts = S3_PATIENT_ATTEMPTS
        _filesystem.cache_clear()
        _s3_client.cache_clear()


@dataclass(frozen=True)
class Location:
    """A directory or object: `uri` for people and specs, `path` for `fs`."""

    uri: str

    @classmethod
    def of(cls, uri: str, field: str = "storage_path") -> Location:
        """The place of a URI; SpecError names `field`."""
        try:
            return cls(normalise(uri))
        except SpecError as exc:
            raise SpecError(f"{field}: {exc.message}") from None

    @property
    def is_local(self) -> bool:
        return "://" not in self.uri

    @property
    def fs(self) -> FileSystem:
        parts = urlsplit(self.uri)
        return _filesystem("" if self.is_local else parts.scheme, parts.netloc, parts.query)

    @property
    def path(self) -> str:
        """The path on `fs`: absolute for local files, `bucket/key` for S3."""
        if self.is_local:
            return self.uri
        parts = urlsplit(self.uri)
        return (parts.netloc + parts.path).rstrip("/")

    @property
    def name(self) -> str:
        return posixpath.basename(self.path)

    def child(self, *parts: str) -> Location:
        if self.is_local:
            return Location(posixpath.join(self.uri, *parts))
        split = urlsplit(self.uri)
        return Location(urlunsplit(split._replace(path=posixpath.join(split.path or "/", *parts))))

    @property
    def parent(self) -> Location:
        if self.is_local:
            return Location(posixpath.dirname(self.uri.rstrip("/")))
        split = urlsplit(self.uri)
        return Location(urlunsplit(split._replace(path=posixpath.dirname(split.path.rstrip("/")))))

    def before(self, part: str) -> Location:
        """This place up to the first folder named `part`; itself where there is none."""
        split = urlsplit(self.uri)
        path = self.uri if self.is_local else split.path
        head = path.partition(f"/{part}/")[0]
        return Location(head) if self.is_local else Location(urlunsplit(split._replace(path=head)))

    # ---- reading

    def read(self) -> bytes | None:
        """The content, or None where there is definitely none. Raises StorageError when it cannot be told."""
        try:
            with self.fs.open_input_stream(self.path) as stream:
                data: bytes = stream.read()
                return data
        except FileNotFoundError as exc:
            self._bucket_must_exist(exc)
            return None
        except OSError as exc:
            raise StorageError(f"{self.uri} cannot be read: {exc}") from exc

    def names(self) -> list[str]:
        """Sorted names of what lies directly under here; empty where there is nothing."""
        try:
            if self.is_local:
                # arrow's listing fails when the folder, or a file in it, comes or goes in the same moment
                return sorted(os.listdir(self.path))
            from pyarrow.fs import FileSelector

            found = self.fs.get_file_info(FileSelector(self.path, allow_not_found=True))
        except FileNotFoundError as exc:
            self._bucket_must_exist(exc)
            return []
        except OSError as exc:
            raise StorageError(f"{self.uri} cannot be listed: {exc}") from exc
        return sorted(info.base_name for info in found)

    def exists(self) -> bool:
        from pyarrow.fs import FileType

        try:
            return bool(self.fs.get_file_info(self.path).type != FileType.NotFound)
        except OSError as exc:
            raise StorageError(f"{self.uri} cannot be looked up: {exc}") from exc

    # ---- writing

    def write(self, data: bytes) -> None:
        """Replace the content atomically: a reader sees the old or the new, a crash leaves one of them."""
        try:
            if self.is_local:
                temporary = self._write_beside(data)
                os.replace(temporary, self.path)
                return
            with self.fs.open_output_stream(self.path) as stream:
                stream.write(data)
        except OSError as exc:
            raise StorageError(f"{self.uri} cannot be written: {exc}") from exc

    def create(self, data: bytes) -> bool:
        """Write unless something is there; True for the one caller who did. Atomic over processes and hosts."""
        if not self.is_local:
            return _s3_create(self, data)
        try:
            temporary = self._write_beside(data)
            try:
                os.link(temporary, self.path)
            except FileExistsError:
                return False
            finally:
                os.unlink(temporary)
        except OSError as exc:
            hint = " (the file system has no hard links)" if exc.errno in (errno.EPERM, errno.EOPNOTSUPP) else ""
            raise StorageError(f"{self.uri} cannot be created: {exc}{hint}") from exc
        return True

    def delete(self) -> None:
        """Delete this file; fine where there is none."""
        self._delete_by(self.fs.delete_file)

    def delete_dir(self) -> None:
        """Delete this directory and what is in it; fine where there is none."""
        self._delete_by(self.fs.delete_dir)

    def _delete_by(self, delete: Callable[[str], None]) -> None:
        try:
            delete(self.path)
        except FileNotFoundError:
            pass
        except OSError as exc:
            raise StorageError(f"{self.uri} cannot be deleted: {exc}") from exc

    def make_dir(self) -> None:
        try:
            self.fs.create_dir(self.path, recursive=True)
        except OSError as exc:
            raise StorageError(f"{self.uri} cannot be made: {exc}") from exc

    def _write_beside(self, data: bytes) -> str:
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        temporary = f"{self.path}.{uuid.uuid4().hex[:8]}.tmp"
        try:
            with open(temporary, "xb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError:
            if os.path.exists(temporary):
                os.unlink(temporary)
            raise
        return temporary

    def _bucket_must_exist(self, exc: FileNotFoundError) -> None:
        # arrow reports a missing bucket as a missing file, and that is not "absent"
        if "bucket" in str(exc).lower() and not self.is_local:
            raise StorageError(f"{self.uri} cannot be read: {exc}") from exc


def numbered(names: list[str]) -> list[int]:
    """The numbers of those names that are one, like 007.json, in order: files of which the highest counts, and the next is
    created if absent."""
    return sorted(int(name[:-5]) for name in names if re.fullmatch(r"\d+\.json", name))


@lru_cache(maxsize=64)
def _filesystem(scheme: str, netloc: str, query: str) -> FileSystem:
    from pyarrow import fs

    if scheme == "":
        return fs.LocalFileSystem()
    bucket_uri = urlunsplit((scheme, netloc, "", query, ""))
    try:
        filesystem, _ = fs.FileSystem.from_uri(bucket_uri)
    except (OSError, ValueError) as exc:
        raise SpecError(f"storage_path: given {bucket_uri!r}; it cannot be opened ({exc})") from exc
    if scheme == "s3":
        # a URI has no word for retries; the options it was opened with are what it is pickled as
        _, (options,) = filesystem.__reduce__()
        return fs.S3FileSystem(**options, retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_attempts))
    return filesystem


@lru_cache(maxsize=16)
def _s3_client(query: str) -> Any:
    try:
        import boto3
        from botocore.config import Config
    except ImportError as exc:
        raise SpecError("storage_path: s3:// needs boto3: pip install 'ray-train-workflows[s3]'") from exc
    options = dict(parse_qsl(query))
    endpoint = options.get("endpoint_override")
    if endpoint and "://" not in endpoint:
        endpoint = f"{options.get('scheme', 'https')}://{endpoint}"
    config = Config(retries={"mode": "standard", "total_max_attempts": _attempts})
    return boto3.client("s3", endpoint_url=endpoint, region_name=options.get("region"), config=config)


def _s3_create(location: Location, data: bytes) -> bool:
    from botocore.exceptions import BotoCoreError, ClientError

    bucket, _, key = location.path.partition("/")
    try:
        _s3_client(urlsplit(location.uri).query).put_object(Bucket=bucket, Key=key, Body=data, IfNoneMatch="*")
    except ClientError as exc:
        if exc.response.get("Error", {}).get("Code") in ("PreconditionFailed", "ConditionalRequestConflict"):
            # a put whose answer was lost is sent again, and then finds what it wrote itself
            return location.read() == data
        raise StorageError(f"{location.uri} cannot be created: {exc}") from exc
    except BotoCoreError as exc:
        raise StorageError(f"{location.uri} cannot be created: {exc}") from exc
    return True
