"""A URI as a place on persistent storage, with the few operations a run directory needs.

Reading and listing go through `pyarrow.fs`. Two writes need more than it offers: *create if absent* (local: a hard link of
a finished file; elsewhere a conditional put, see `filesystems`) and *atomic replace* (local: rename; a put is atomic by
itself). "Cannot be read" is never "absent": only a definite not-found gives None.
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from plugin_core.errors import SpecError, StorageError
from plugin_core.filesystems import BUCKETS, Backend, backend, check_uri, path_of
from plugin_core.filesystems import be_patient as be_patient

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem


def default_storage_path() -> str:
    """`RAY_STORAGE`, then `~/ray_results`, as Ray's users know it."""
    return os.environ.get("RAY_STORAGE") or str(Path.home() / "ray_results")


def normalise(uri: str) -> str:
    """A local path made absolute (also from `file://`), another URI as it is. Raises SpecError where it is no place."""
    if not uri:
        raise SpecError("given ''; accepted is a local path or a URI")
    if "://" not in uri:
        return str(Path(uri).expanduser().absolute())
    check_uri(uri)
    parts = urlsplit(uri)
    return parts.path if parts.scheme == "file" else uri


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
        return self._backend.fs

    @property
    def _backend(self) -> Backend:
        parts = urlsplit(self.uri)
        return backend("", "", "") if self.is_local else backend(parts.scheme, parts.netloc, parts.query)

    @property
    def path(self) -> str:
        """The path on `fs`: absolute for local files, `bucket/key` elsewhere."""
        return self.uri if self.is_local else path_of(self.uri)

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
        except FileNotFoundError:
            self._bucket_must_exist()
            return None
        except self._backend.errors as exc:
            raise StorageError(f"{self.uri} cannot be read: {exc}") from exc

    def names(self) -> list[str]:
        """Sorted names of what lies directly under here; empty where there is nothing."""
        try:
            if self.is_local:
                # arrow's listing fails when the folder, or a file in it, comes or goes in the same moment
                return sorted(os.listdir(self.path))
            if self._backend.names is not None:
                return sorted(self._backend.names(self.path))
            from pyarrow.fs import FileSelector

            found = self.fs.get_file_info(FileSelector(self.path, allow_not_found=True))
        except FileNotFoundError:
            self._bucket_must_exist()
            return []
        except self._backend.errors as exc:
            raise StorageError(f"{self.uri} cannot be listed: {exc}") from exc
        if not found:
            self._bucket_must_exist()  # arrow lists one that is not there as an empty one
        return sorted(info.base_name for info in found)

    def files(self) -> dict[str, FileInfo]:
        """The files in and below this directory, by their path from here; none where there is nothing."""
        from pyarrow.fs import FileSelector, FileType

        try:
            found = self.fs.get_file_info(FileSelector(self.path, recursive=True, allow_not_found=True))
        except self._backend.errors as exc:
            raise StorageError(f"{self.uri} cannot be listed: {exc}") from exc
        if not found:
            self._bucket_must_exist()
        start = len(self.path.strip("/")) + 1
        return {info.path.strip("/")[start:]: info for info in found if info.type == FileType.File}

    def exists(self) -> bool:
        from pyarrow.fs import FileType

        try:
            return bool(self.fs.get_file_info(self.path).type != FileType.NotFound)
        except self._backend.errors as exc:
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
        except self._backend.errors as exc:
            raise StorageError(f"{self.uri} cannot be written: {exc}") from exc

    def upload(self, file: Path) -> None:
        """Write a local file's content, in parts and so not atomically. Raises StorageError."""
        try:
            self.fs.create_dir(self.parent.path)
            with file.open("rb") as source, self.fs.open_output_stream(self.path) as stream:
                shutil.copyfileobj(source, stream, 1 << 20)
        except self._backend.errors as exc:
            raise StorageError(f"{self.uri} cannot be written: {exc}") from exc

    def create(self, data: bytes) -> bool:
        """Write unless something is there; True for the one caller who did. Atomic over processes and hosts."""
        if not self.is_local:
            return self._create_remotely(data)
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

    def _create_remotely(self, data: bytes) -> bool:
        create = self._backend.create
        if create is None:
            raise SpecError(
                f"storage_path: given {self.uri!r}, where files cannot be created without a race, as a run needs it;"
                " accepted there are datasets and outputs"
            )
        try:
            # a request whose answer was lost is sent again, and then finds what it wrote itself
            return create(self.path, data) or self.read() == data
        except StorageError:
            raise
        except self._backend.errors as exc:
            raise StorageError(f"{self.uri} cannot be created: {exc}") from exc

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
        except self._backend.errors as exc:
            raise StorageError(f"{self.uri} cannot be deleted: {exc}") from exc

    def make_dir(self) -> None:
        try:
            self.fs.create_dir(self.path, recursive=True)
        except self._backend.errors as exc:
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

    def _bucket_must_exist(self) -> None:
        """Raise StorageError where the bucket of what is not there is not there either: the SDKs report both alike."""
        from pyarrow.fs import FileType

        parts = urlsplit(self.uri)
        bucket = (parts.scheme, parts.netloc, parts.query)
        if self.is_local or parts.scheme not in BUCKETS or bucket in _buckets_seen:
            return
        name = self.path.partition("/")[0]
        try:
            there = self.fs.get_file_info(name).type != FileType.NotFound
        except self._backend.errors as exc:
            # who may use a prefix alone is refused the bucket, and so it is there
            if not refusal(exc):
                raise StorageError(f"{self.uri} cannot be looked up: {exc}") from exc
            there = True
        if not there:
            raise StorageError(f"{self.uri} cannot be read: there is no bucket {name!r}")
        _buckets_seen.add(bucket)


#: The buckets that this process has found to be there.
_buckets_seen: set[tuple[str, str, str]] = set()

#: What storages answer to who will never be served as things are; the words of S3's SDKs, of pyarrow and of fsspec.
_REFUSALS = {
    r"NoSuchBucket|NO_SUCH_BUCKET|bucket does not exist|there is no bucket": "where there is no such bucket",
    r"NoCredentials|Unable to locate credentials": "and there are no credentials for it here",
    # of a HEAD request there is no telling which of the two
    r"InvalidAccessKeyId|INVALID_ACCESS_KEY_ID|SignatureDoesNotMatch|Access_?Denied|ACCESS_DENIED|Forbidden|status 403": (
        "which refuses these credentials (a wrong key, or no permission)"
    ),
}


def refusal(error: BaseException) -> str:
    """Why a storage that answered will not do, in words; "" where it may yet."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return f"where this user may not write ({os.strerror(cause.errno)})"
        if isinstance(cause, OSError) and cause.errno in (errno.ENOTDIR, errno.EEXIST):
            return "where a file stands in the way"
        text = f"{type(cause).__name__}: {cause}"
        for pattern, words in _REFUSALS.items():
            if re.search(pattern, text):
                return words
        cause = cause.__cause__
    return ""


def numbered(names: list[str]) -> list[int]:
    """The numbers of those names that are one, like 007.json, in order: files of which the highest counts, and the next is
    created if absent."""
    return sorted(int(name[:-5]) for name in names if re.fullmatch(r"\d+\.json", name))
