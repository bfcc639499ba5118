"""A location on persistent storage, given by URI, with the few operations a run directory needs.

Reading and listing go through `pyarrow.fs`. Two writes need more than it offers: *create if absent* (local: hard link to
a finished file; elsewhere a conditional put, see `filesystems`) and *atomic replace* (local: rename; a put is atomic by
itself). "Cannot be read" is never "absent": only a definite not-found returns None.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from plugin_core.errors import SpecError, StorageError
from plugin_core.storage.filesystems import BUCKETS, Backend, backend, path_of
from plugin_core.storage.filesystems import be_patient as be_patient
from plugin_core.storage.refusals import refusal
from plugin_core.storage.small_files import SmallFiles
from plugin_core.storage.uris import check_below, check_length, check_local_path, check_storage_uri, quoted

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSystem

#: The most bytes of a file that are read unless more are asked for: others may write to a storage, too. Our records,
#: including results with slices, are far smaller.
RECORD_BYTES = 64 * 2**20


def default_storage_path() -> str:
    """`RAY_STORAGE`, else `~/ray_results`, as in Ray."""
    return os.environ.get("RAY_STORAGE") or str(Path.home() / "ray_results")


def normalise(uri: str) -> str:
    """Make a local path (also from `file://`) absolute; return other URIs unchanged. Raises SpecError if it is neither."""
    if not uri:
        raise SpecError("got ''; expected a local path or a URI")
    check_length(uri)
    if "://" not in uri:
        check_local_path(uri)
        try:
            return str(Path(uri).expanduser().absolute())
        except RuntimeError as exc:  # ~somebody
            raise SpecError(f"got {uri!r}; expected a local path ({exc})") from None
    check_storage_uri(uri)
    parts = urlsplit(uri)
    return parts.path if parts.scheme == "file" else uri


@dataclass(frozen=True)
class Location:
    """A directory or object: `uri` for people and specs, `path` for `fs`."""

    uri: str

    @classmethod
    def of(cls, uri: str, field: str = "storage_path") -> Location:
        """The location at a URI. Raises SpecError naming `field`."""
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
    def errors(self) -> tuple[type[Exception], ...]:
        """What `fs` raises; cloud SDKs have errors that are no OSError."""
        return self._backend.errors

    @property
    def has_folders(self) -> bool:
        """Whether a folder must be created before files in it."""
        return self._backend.has_folders

    @property
    def small_files(self) -> SmallFiles:
        """Small-file access to the same storage, by `path`."""
        return self._backend.files

    @property
    def path(self) -> str:
        """The path on `fs`: absolute for local files, `bucket/key` elsewhere."""
        return self.uri if self.is_local else path_of(self.uri)

    @property
    def name(self) -> str:
        return posixpath.basename(self.path)

    def child(self, *parts: str) -> Location:
        """The location of that name below this one. Raises SpecError if the name leads elsewhere."""
        for part in parts:
            check_below(self.uri, part)
        if self.is_local:
            return Location(posixpath.join(self.uri, *parts))
        split = urlsplit(self.uri)
        return Location(urlunsplit(split._replace(path=posixpath.join(split.path or "/", *map(quoted, parts)))))

    def inside(self, uri: str) -> Location | None:
        """The location at a URI that was read from a file below this one, if it is also below this one; else None."""
        place = Location.of(uri, "path")
        if self.is_local and place.is_local:
            # a link may lead outside, and the storage may have had a different path when the file was written
            home, there = os.path.realpath(self.path), os.path.realpath(place.path)
            return place if there.startswith(home + "/") else None
        ours, theirs = urlsplit(self.uri), urlsplit(place.uri)
        same = (ours.scheme, ours.netloc) == (theirs.scheme, theirs.netloc) and not (self.is_local or place.is_local)
        if not same or not place.path.startswith(self.path + "/"):
            return None
        return Location(urlunsplit(theirs._replace(query=ours.query)))  # opened with our options, not the file's

    @property
    def parent(self) -> Location:
        if self.is_local:
            return Location(posixpath.dirname(self.uri.rstrip("/")))
        split = urlsplit(self.uri)
        return Location(urlunsplit(split._replace(path=posixpath.dirname(split.path.rstrip("/")))))

    def before(self, part: str) -> Location:
        """This location up to the first folder named `part`; itself if there is none."""
        split = urlsplit(self.uri)
        path = self.uri if self.is_local else split.path
        head = path.partition(f"/{part}/")[0]
        return Location(head) if self.is_local else Location(urlunsplit(split._replace(path=head)))

    # ---- reading

    def read(self, at_most: int | None = RECORD_BYTES) -> bytes | None:
        """The content, or None if the file is definitely absent. Raises StorageError if it cannot be read or is larger than
        `at_most` bytes."""
        return self.read_since("", at_most)[0]

    def read_since(self, version: str, at_most: int | None = RECORD_BYTES) -> tuple[bytes | None, str]:
        """The content and its version; (None, `version`) if the version is unchanged, (None, "") if the file is absent.
        Versions are only compared for equality; storages without versions are read each time."""
        with self._failing("read"):
            with contextlib.suppress(FileNotFoundError):
                return self.small_files.read(self.path, version, at_most)
            self._bucket_must_exist()
        return None, ""

    def names(self, after: str = "") -> list[str]:
        """Sorted names directly below this location; empty if it does not exist. `after`: only names that sort after this
        one, which some storages filter on the server."""
        return sorted(self._listed(lambda: dict.fromkeys(self.small_files.names(self.path, after), "")))

    def versions(self) -> dict[str, str]:
        """Name → version of each entry directly below this location. Rewriting a file changes its version; a folder's is
        always ""."""
        return self._listed(lambda: self.small_files.versions(self.path))

    def folders(self) -> list[str]:
        """Sorted names of the folders directly below this location, without those that begin with a dot."""
        return sorted(name for name, version in self.versions().items() if not version and not name.startswith("."))

    def times(self) -> dict[str, float]:
        """When each file below this directory was written (seconds since the epoch, by the storage's clock), by relative
        path; empty if it does not exist. One listing, fit for a folder that others write to meanwhile."""
        with self._failing("listed"), contextlib.suppress(FileNotFoundError):
            return self.small_files.times(self.path)
        return {}

    def _listed(self, listing: Callable[[], dict[str, str]]) -> dict[str, str]:
        found: dict[str, str] = {}
        with self._failing("listed"):
            with contextlib.suppress(FileNotFoundError):
                found = listing()
            if not found:
                self._bucket_must_exist()  # a missing bucket lists as an empty one
        return found

    def files(self) -> dict[str, FileInfo]:
        """All files below this directory, by relative path; empty if it does not exist."""
        from pyarrow.fs import FileSelector, FileType

        with self._failing("listed"):
            found = self.fs.get_file_info(FileSelector(self.path, recursive=True, allow_not_found=True))
            if not found:
                self._bucket_must_exist()
        start = len(self.path.strip("/")) + 1
        return {info.path.strip("/")[start:]: info for info in found if info.type == FileType.File}

    def is_file(self) -> bool:
        """Whether this file exists now: one request, never answered from a mount's cache."""
        with self._failing("looked up"):
            return self.small_files.is_file(self.path)

    def info(self) -> FileInfo:
        """What is here, of type NotFound if nothing is."""
        with self._failing("looked up"):
            found: FileInfo = self.fs.get_file_info(self.path)
        return found

    def exists(self) -> bool:
        """Whether a file or folder exists here."""
        from pyarrow.fs import FileType

        return bool(self.info().type != FileType.NotFound)

    # ---- writing

    def write(self, data: bytes) -> None:
        """Replace the content atomically: readers, and a crash, see either the old or the new content."""
        with self._failing("written"):
            self.small_files.write(self.path, data)

    def upload(self, file: Path) -> None:
        """Upload a local file in parts, so not atomically. Raises StorageError."""
        with self._failing("written"):
            self.parent.make_dir()
            with file.open("rb") as source, self.fs.open_output_stream(self.path) as stream:
                shutil.copyfileobj(source, stream, 1 << 20)

    def create(self, data: bytes) -> bool:
        """Create if absent; True for the one caller that did. Atomic across processes and hosts."""
        with self._failing("created"):
            created = self.small_files.create(self.path, data)
        if created is None:
            raise SpecError(
                f"storage_path: got {self.uri!r}, which cannot create files atomically; expected storage that can (this one"
                " is fine for datasets and outputs)"
            )
        # a request whose response was lost is retried, and then finds its own file
        return created or (not self.is_local and self.read() == data)

    def delete(self) -> None:
        """Delete this file, if it exists."""
        with self._failing("deleted"), contextlib.suppress(FileNotFoundError):
            self.small_files.delete(self.path)

    def delete_dir(self, last: str = "") -> None:
        """Delete this directory and its content, if it exists; the folder `last` in it at the end."""
        with self._failing("deleted"), contextlib.suppress(FileNotFoundError):
            self.small_files.delete_dir(self.path, last)

    def abort_uploads(self) -> int:
        """Abort unfinished multipart uploads below this location and return their number. Killed processes leave them,
        invisible but billed. Uploads in progress fail. Raises StorageError."""
        with self._failing("cleared of unfinished uploads"):
            return self.small_files.abort_uploads(self.path)

    def make_dir(self) -> None:
        if self.has_folders:
            with self._failing("created"):
                self.fs.create_dir(self.path, recursive=True)

    @contextlib.contextmanager
    def _failing(self, done: str) -> Iterator[None]:
        """Turn the storage's errors into a StorageError: this location cannot be `done`."""
        try:
            yield
        except (StorageError, SpecError):
            raise
        except self._backend.errors as exc:
            raise StorageError(f"{self.uri} cannot be {done}: {exc}") from exc

    def _bucket_must_exist(self) -> None:
        """Raise StorageError if the bucket itself is missing: the SDKs report a missing bucket and object alike."""
        from pyarrow.fs import FileType

        parts = urlsplit(self.uri)
        bucket = (parts.scheme, parts.netloc, parts.query)
        if parts.scheme not in BUCKETS or parts.scheme == "s3" or bucket in _buckets_seen:
            return
        name = self.path.partition("/")[0]
        try:
            there = self.fs.get_file_info(name).type != FileType.NotFound
        except self._backend.errors as exc:
            # with permission for a prefix only, access to the bucket is refused, so the bucket exists
            if not refusal(exc):
                raise StorageError(f"{self.uri} cannot be looked up: {exc}") from exc
            there = True
        if not there:
            raise StorageError(f"{self.uri} cannot be read: there is no bucket {name!r}")
        _buckets_seen.add(bucket)


#: The buckets that this process knows to exist.
_buckets_seen: set[tuple[str, str, str]] = set()


def numbered(names: list[str]) -> list[int]:
    """The sorted numbers of all names like 007.json: numbered files of which the highest counts and the next is created if
    absent."""
    return sorted(int(name[:-5]) for name in names if re.fullmatch(r"\d+\.json", name))
