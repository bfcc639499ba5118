"""Temporary files that do not outlive this process, even if it is killed: a checkpoint on its way to storage is large.

Each process has a folder with a lock (`locked_folders`). When it ends, it deletes the folder; if it is killed, the next
process of the same user on the node does, as soon as that needs a folder too.
"""

from __future__ import annotations

import atexit
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from plugin_core.storage.locked_folders import alone, is_current, made_root, opened, remove, sweep


@dataclass(frozen=True)
class _Own:
    pid: int
    folder: Path
    lock: int

    @property
    def is_there(self) -> bool:
        """False in a fork, and after somebody cleaned up /tmp."""
        return self.pid == os.getpid() and self.folder.is_dir() and is_current(self.lock, self.folder.with_suffix(".lock"))


_own: _Own | None = None


def scratch() -> Path:
    """This process's folder for temporary files: for the `dir` of `tempfile`'s functions. Raises StorageError if the
    folder that all processes of this user share belongs to somebody else, OSError if it cannot be made."""
    global _own
    if _own is None or not _own.is_there:
        root = made_root("scratch", "temporary files")
        _own = _made(root)
        sweep(root, besides=_own.folder.name)
    return _own.folder


def _made(root: Path) -> _Own:
    while True:
        folder = root / f"{os.getpid()}-{secrets.token_hex(4)}"
        path = folder.with_suffix(".lock")
        lock = opened(path)
        if alone(lock) and is_current(lock, path):  # another process may have swept it before it was locked
            folder.mkdir(mode=0o700)
            return _Own(os.getpid(), folder, lock)
        os.close(lock)


@atexit.register
def clean_up() -> None:
    """Delete this process's folder. Call it before a process exits without running its atexit functions."""
    if _own is not None and _own.is_there:
        remove(_own.folder)
