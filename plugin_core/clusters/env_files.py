"""Files that must not outlive the process: credentials files named by a variable.

On Linux they are held in memory. The process, its threads and its children open them as `/proc/PID/fd/N`; other users
cannot, and nothing remains however the process ends. Elsewhere they are owner-only temporary files, removed when the
process exits, but not if it is killed.
"""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

_on_disk: list[Path] = []


def install(files: Mapping[str, str]) -> None:
    """Create the files and set the variables that name them."""
    for variable, content in files.items():
        os.environ[variable] = _in_memory(variable, content) or _temporary(content)


def _in_memory(name: str, content: str) -> str | None:
    """The path of an in-memory file; None if this system does not support one that child processes can open."""
    if not hasattr(os, "memfd_create"):
        return None
    try:
        descriptor = os.memfd_create(name[:200])
    except OSError:
        return None
    with os.fdopen(descriptor, "w", encoding="utf-8", closefd=False) as file:
        file.write(content)
    os.fchmod(descriptor, 0o400)
    path = f"/proc/{os.getpid()}/fd/{descriptor}"
    if not os.path.exists(path):
        os.close(descriptor)
        return None
    return path


def _temporary(content: str) -> str:
    descriptor, path = tempfile.mkstemp(prefix="raytrain-")  # readable only by its owner
    _on_disk.append(Path(path))
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(content)
    return path


@atexit.register
def remove() -> None:
    """Remove the files on disk. Call it before a process exits without running its atexit functions."""
    while _on_disk:
        _on_disk.pop().unlink(missing_ok=True)
