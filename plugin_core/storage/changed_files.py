"""The files of a local folder that storage has not got yet, or not as they are now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def changed_files(folder: Path, sent: dict[str, tuple[int, int]]) -> Iterator[tuple[str, Path, tuple[int, int]]]:
    """Name below the folder, file, and its size and time of change, of each file whose are others than those in `sent`.
    Who has sent one notes that there."""
    for file in sorted(folder.rglob("*")):
        if not file.is_file():
            continue
        name, state = file.relative_to(folder).as_posix(), (file.stat().st_size, file.stat().st_mtime_ns)
        if sent.get(name) != state:
            yield name, file, state
