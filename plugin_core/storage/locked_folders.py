"""Folders on a node's disk, each with a kernel lock (flock(2)): ROOT/NAME and ROOT/NAME.lock, and ROOT/NAME.part until
it is complete.

The kernel releases a lock however its process ends, so a folder left by a killed process is recognised by its free lock.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from plugin_core.storage.ownership import make_own


def made_root(kind: str, holds: str) -> Path:
    """Make the folder that all processes of this user on the node share for one kind of folders, unless it exists. Raises
    StorageError if it belongs to somebody else, OSError if it cannot be made. `holds`: what is in it, for the message."""
    root = Path(tempfile.gettempdir(), f"raytrain-{kind}-{os.getuid()}")
    make_own(root, f"{root}, the folder for {holds}, belongs to another user; set TMPDIR to another folder")
    return root


def opened(path: Path) -> int:
    """Open the lock file, or make it; returns its descriptor."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def alone(lock: int) -> bool:
    """Try to take the lock exclusively. On failure our shared lock is lost too, see flock(2)."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_current(lock: int, path: Path) -> bool:
    """Whether `path` is still this lock file: removing a folder also removes its lock file."""
    try:
        return os.path.samestat(os.fstat(lock), os.stat(path))
    except FileNotFoundError:
        return False


def remove(folder: Path) -> None:
    """The caller must hold the lock exclusively."""
    for path in (folder, folder.with_suffix(".part")):
        shutil.rmtree(path, ignore_errors=True)
    with suppress(FileNotFoundError):
        os.unlink(folder.with_suffix(".lock"))


def sweep(root: Path, besides: str) -> None:
    """Remove the folders left by killed processes, except the one of this name."""
    for path in root.glob("*.lock"):
        if path.stem == besides:
            continue
        with suppress(FileNotFoundError):
            lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                if alone(lock) and is_current(lock, path):
                    remove(path.with_suffix(""))
            finally:
                os.close(lock)
