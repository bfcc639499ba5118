"""The filesystem given to Ray: checks the fence before each write and replaces Ray Train's snapshot atomically.

Ray's checkpoint manager registers a checkpoint, writes its snapshot and deletes old checkpoints before any callback runs
(ray 2.60), so a callback cannot fence it; but all its files pass through `RunConfig.storage_filesystem`.
"""

from __future__ import annotations

import io
import logging
import posixpath
import time
from typing import Any

from pyarrow import NativeFile, PythonFile
from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileSystemHandler, PyFileSystem

from plugin_core.errors import FencedError
from plugin_core.runs import timings
from plugin_core.runs.directory import RunDir
from plugin_core.runs.fence import Fence
from plugin_core.runs.journal import flush_writers
from plugin_core.runs.pins import pinned
from plugin_core.storage import checkpoint_manifest
from plugin_core.storage.location import Location, be_patient

#: Ray Train's index of a run's checkpoints; a torn one stops the run for good (ray 2.60).
SNAPSHOT = "checkpoint_manager_snapshot.json"
#: The folder of a run in which Ray Tune keeps the state of a search.
EXPERIMENT = "tune"

logger = logging.getLogger(__name__)


class _Replaced(io.BytesIO):
    """A file buffered in memory that atomically replaces the one at `place` when closed."""

    def __init__(self, place: Location, fence: Fence):
        super().__init__()
        self._place = place
        self._fence = fence

    def close(self) -> None:
        if self.closed:
            return
        data = self.getvalue()
        super().close()
        # the journal must have all reports up to a checkpoint that the run may resume from
        flush_writers()
        self._fence.check()
        self._place.write(data)


class _FencedHandler(FileSystemHandler):
    """The filesystem of a place, with a run's fence checked before each write. It is pickled for the controller and
    workers as URIs, since pyarrow's S3FileSystem loses its retry strategy when pickled."""

    def __init__(self, run_uri: str, attempt: int, place: str):
        be_patient()
        self._key = (run_uri, attempt, place)
        self._fence = Fence(run_uri, attempt)
        self._run = Location.of(run_uri)
        self._place = Location.of(place)
        self._fs: FileSystem = self._place.fs
        self._there: dict[str, FileInfo] = {}
        self._looked: float | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _FencedHandler, self._key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _FencedHandler) and other._key == self._key

    def __hash__(self) -> int:
        return hash(self._key)

    # ---- reading

    def get_type_name(self) -> str:
        return f"fenced-{self._fs.type_name}"

    def normalize_path(self, path: str) -> str:
        normal: str = self._fs.normalize_path(path)
        return normal

    def get_file_info(self, paths: list[str]) -> list[FileInfo]:
        known = {path: info for path in paths if (info := self._checkpoint(path.rstrip("/"))) is not None}
        others = [path for path in paths if path not in known]
        known.update(zip(others, self._fs.get_file_info(others) if others else [], strict=True))
        return [known[path] for path in paths]

    def _checkpoint(self, path: str) -> FileInfo | None:
        """Look up a checkpoint in a recent listing. Before training Ray stats every existing checkpoint, one by one (ray
        2.60): one listing answers thousands of calls. None: not listed, so query storage."""
        folder, name = posixpath.split(path)
        if folder != self._run.path or not checkpoint_manifest.NAME.search(name):
            return None
        if self._looked is None or time.monotonic() - self._looked > timings.FENCE_CACHE_S:
            found = self._fs.get_file_info(FileSelector(self._run.path, allow_not_found=True))
            self._there = {info.base_name: info for info in found}
            self._looked = time.monotonic()
        return self._there.get(name)

    def get_file_info_selector(self, selector: FileSelector) -> list[FileInfo]:
        found: list[FileInfo] = self._fs.get_file_info(selector)
        return found

    def open_input_stream(self, path: str) -> NativeFile:
        # unbuffered: the caller's side adds a buffer
        return self._fs.open_input_stream(path)

    def open_input_file(self, path: str) -> NativeFile:
        return self._fs.open_input_file(path)

    # ---- writing

    def open_output_stream(self, path: str, metadata: Any = None) -> NativeFile:
        if (index := self._index(path)) is not None:
            return PythonFile(_Replaced(index, self._fence), mode="w")
        self._fence.check(cached=True)
        return self._fs.open_output_stream(path, metadata=metadata)

    def _index(self, path: str) -> Location | None:
        """The location of a file that Ray restores from, which must never be torn; None for other files."""
        for place in (self._run.child(SNAPSHOT), self._run.child(EXPERIMENT, posixpath.basename(path))):
            if path == place.path:
                return place
        return None

    def open_append_stream(self, path: str, metadata: Any = None) -> NativeFile:
        self._fence.check()
        return self._fs.open_append_stream(path, metadata=metadata)

    def create_dir(self, path: str, recursive: bool) -> None:
        if not self._place.has_folders:
            return
        self._fence.check(cached=True)
        self._fs.create_dir(path, recursive=recursive)

    def delete_dir(self, path: str) -> None:
        self._fence.check()
        name = posixpath.basename(path.rstrip("/"))
        if path.rstrip("/") == self._run.child(name).path and pinned(RunDir.at(self._run.uri), name):
            logger.info("%s is kept because it is needed elsewhere", name)
            return
        self._there.pop(name, None)
        self._place.small_files.delete_dir(path, last=checkpoint_manifest.FOLDER)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        self._fence.check()
        self._fs.delete_dir_contents(path, missing_dir_ok=missing_dir_ok)

    def delete_root_dir_contents(self) -> None:
        raise FencedError("the storage root must not be deleted")

    def delete_file(self, path: str) -> None:
        self._fence.check()
        self._place.small_files.delete(path)

    def move(self, src: str, dest: str) -> None:
        self._fence.check()
        self._fs.move(src, dest)

    def copy_file(self, src: str, dest: str) -> None:
        self._fence.check(cached=True)
        self._fs.copy_file(src, dest)


def fenced_filesystem(run_uri: str, attempt: int, place: str | None = None) -> FileSystem:
    """Return the filesystem for Ray Train's `RunConfig.storage_filesystem`, or that of another `place` (a URI) that the
    attempt writes to."""
    return PyFileSystem(_FencedHandler(run_uri, attempt, place or run_uri))
