"""Files whose content must outlive no process: credentials files that a variable names.

On Linux they lie in the memory of the process. `/proc/PID/fd/N` opens them in the process, in its threads and in what it
starts; nobody but its user can, and nothing is left of them when it ends, however it ends. Elsewhere they are temporary
files of the owner's alone, which are removed when the process ends, but not when it is killed.
"""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

_on_disk: list[Path] = []


def install(files: Mapping[str, str]) -> None:
    """Make the files, and set the variables that name them."""
    for variable, content in files.items():
        os.environ[variable] = _in_memory(variable, content) or _temporary(content)


def _in_memory(name: str, content: str) -> str | None:
    """The path of a file in memory; None where this system has none that others could open."""
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
    descriptor, path = tempfile.mkstemp(prefix="raytrain-")  # readable by its owner alone
    _on_disk.append(Path(path))
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(content)
    return path


@atexit.register
def remove() -> None:
    """Remove what is on disk; for a process that ends without running its exit functions."""
    while _on_disk:
        _on_disk.pop().unlink(missing_ok=True)
