"""A checkpoint's local copy, shared by all processes of a node: downloaded once, complete, deleted by its last reader.

Ray shares a copy only between holders of the same Checkpoint object, and re-downloads over files that another process is
reading (ray 2.60: torn models, rarely). Here every reader and downloader holds the copy's lock (`locked_folders`).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray.train import Checkpoint

from plugin_core.errors import RayTrainWorkflowsError
from plugin_core.storage.checkpoint_manifest import damaged, mismatch, missing
from plugin_core.storage.location import Location
from plugin_core.storage.locked_folders import alone, is_current, made_root, opened, remove, sweep

#: Seconds a reader waits to retry after losing the race for the lock.
_AGAIN_S = 0.02


class NodeCheckpoint(Checkpoint):  # type: ignore[misc]
    """Ray's Checkpoint at a URI. Its `as_directory()` shares one copy between all processes of this node that read it
    concurrently; local files are not copied. One of the processes verifies the files byte by byte against the manifest."""

    def __init__(self, uri: str):
        self._place = Location.of(uri)
        super().__init__(self._place.path, self._place.fs)

    def __reduce__(self) -> Any:
        """Pickled as its URI: a pickled filesystem loses some of its options."""
        return type(self), (self._place.uri,)

    @contextmanager
    def as_directory(self) -> Iterator[str]:
        """Raises SpecError if the checkpoint is missing or damaged, StorageError if that cannot be determined."""
        with shared_copy(self._key(), self._verify if self._place.is_local else self._download) as folder:
            yield self.path if self._place.is_local else str(folder)

    def missing(self) -> RayTrainWorkflowsError:
        return missing(self._place.uri)

    def damaged(self, what: str) -> RayTrainWorkflowsError:
        return damaged(self._place.uri, what)

    def _key(self) -> str:
        """The name of a copy of the current content: a rewritten checkpoint gets a different key."""
        found = self._place.files()
        if not found:
            raise self.missing()
        files = sorted((path, info.size, str(info.mtime)) for path, info in found.items())
        return hashlib.sha256(repr((self._place.uri, files)).encode()).hexdigest()[:32]

    def _download(self, folder: Path) -> None:
        self.to_directory(folder)
        self._check(folder)

    def _verify(self, mark: Path) -> None:
        """Verify the original files; the empty folder `mark` records that this is done."""
        self._check(Path(self.path))
        mark.mkdir()

    def _check(self, folder: Path) -> None:
        if what := mismatch(folder):
            raise self.damaged(what)


@contextmanager
def shared_copy(key: str, download: Callable[[Path], None]) -> Iterator[Path]:
    """A complete copy's folder, kept for the duration of the block."""
    root = made_root("checkpoints", "checkpoint copies")
    sweep(root, besides=key)
    folder, path = root / key, root / f"{key}.lock"
    lock = opened(path)
    try:
        while True:
            fcntl.flock(lock, fcntl.LOCK_SH)  # waits for the downloader
            if not is_current(lock, path):
                os.close(lock)
                lock = opened(path)
            elif folder.is_dir():
                break
            elif alone(lock):
                if is_current(lock, path) and not folder.is_dir():
                    _fill(folder, download)
            else:
                time.sleep(_AGAIN_S)
        yield folder
    finally:
        if alone(lock) and is_current(lock, path):
            remove(folder)
        os.close(lock)


def _fill(folder: Path, download: Callable[[Path], None]) -> None:
    """Download to a temporary folder, then rename: a folder that exists is complete."""
    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        download(part)
        os.replace(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)
