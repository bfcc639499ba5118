"""A checkpoint's local copy, one for all processes of a node: downloaded once, whole, deleted by the last who reads it.

Ray shares a copy among those who hold the same Checkpoint object only, and downloads it again over the files that another
reads (ray 2.60: torn models, rarely). Who reads or downloads here holds a lock of the kernel's (flock(2)), which ends with
the process, however it ends: a copy that a killed process left is found by its free lock.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ray.train import Checkpoint

from plugin_core.errors import StorageError
from plugin_core.storage.checkpoint_manifest import check_copy, missing
from plugin_core.storage.location import Location

#: Seconds between two tries of a reader whom another overtook between two locks.
_AGAIN_S = 0.02


class NodeCheckpoint(Checkpoint):  # type: ignore[misc]
    """Ray's Checkpoint at a URI, whose `as_directory()` gives one copy to all processes of this node that read it at the
    same time; from a path of this machine nothing is copied. A copy is checked byte by byte against the manifest."""

    def __init__(self, uri: str):
        self._place = Location.of(uri)
        super().__init__(self._place.path, self._place.fs)

    def __reduce__(self) -> Any:
        """It travels as its URI: a filesystem that is pickled forgets some of its options."""
        return NodeCheckpoint, (self._place.uri,)

    @contextmanager
    def as_directory(self) -> Iterator[str]:
        """Raises SpecError where the checkpoint is not as it was written, or there is none; StorageError where that cannot
        be told."""
        if self._place.is_local:
            yield self.path
            return
        with _shared(self._key(), self._download) as folder:
            yield str(folder)

    def _key(self) -> str:
        """The name of a copy of what is there now: a checkpoint that was written anew is another."""
        found = self._place.files()
        if not found:
            raise missing(self._place.uri)
        files = sorted((path, info.size, str(info.mtime)) for path, info in found.items())
        return hashlib.sha256(repr((self._place.uri, files)).encode()).hexdigest()[:32]

    def _download(self, folder: Path) -> None:
        self.to_directory(folder)
        check_copy(folder, self._place.uri)


@contextmanager
def _shared(key: str, download: Callable[[Path], None]) -> Iterator[Path]:
    """The folder of a copy, which is whole and stays while the block lasts."""
    root = Path(tempfile.gettempdir(), f"raytrain-checkpoints-{os.getuid()}")
    root.mkdir(mode=0o700, exist_ok=True)
    if root.lstat().st_uid != os.getuid():
        raise StorageError(
            f"{root} belongs to another user, and checkpoints are copied there; set TMPDIR to another folder"
        )
    _sweep(root, besides=key)
    folder, path = root / key, root / f"{key}.lock"
    lock = _opened(path)
    try:
        while True:
            fcntl.flock(lock, fcntl.LOCK_SH)  # waits for who downloads
            if not _is_current(lock, path):
                os.close(lock)
                lock = _opened(path)
            elif folder.is_dir():
                break
            elif _alone(lock):
                if _is_current(lock, path) and not folder.is_dir():
                    _fill(folder, download)
            else:
                time.sleep(_AGAIN_S)
        yield folder
    finally:
        if _alone(lock) and _is_current(lock, path):
            _remove(folder)
        os.close(lock)


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _alone(lock: int) -> bool:
    """Take the lock alone, unless another has it; then this one is not held any more either, as flock(2) says."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_current(lock: int, path: Path) -> bool:
    """Whether this is the lock that others find there: who removes a copy removes its lock."""
    try:
        return os.path.samestat(os.fstat(lock), os.stat(path))
    except FileNotFoundError:
        return False


def _fill(folder: Path, download: Callable[[Path], None]) -> None:
    """Download beside, and rename: a folder that is there is whole."""
    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        download(part)
        os.replace(part, folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _remove(folder: Path) -> None:
    """By who holds the lock alone."""
    for path in (folder, folder.with_suffix(".part")):
        shutil.rmtree(path, ignore_errors=True)
    with suppress(FileNotFoundError):
        os.unlink(folder.with_suffix(".lock"))


def _sweep(root: Path, besides: str) -> None:
    """Remove what killed processes left."""
    for path in root.glob("*.lock"):
        if path.stem == besides:
            continue
        with suppress(FileNotFoundError):
            lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                if _alone(lock) and _is_current(lock, path):
                    _remove(path.with_suffix(""))
            finally:
                os.close(lock)
