"""Find local files that are new or changed since their last upload."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def changed_files(folder: Path, sent: dict[str, tuple[int, int]]) -> Iterator[tuple[str, Path, tuple[int, int]]]:
    """Yield (relative name, file, (size, mtime_ns)) for each file whose size or mtime differs from `sent`.

    The caller records each uploaded file in `sent`.
    """
    for file in sorted(folder.rglob("*")):
        if not file.is_file():
            continue
        name, state = file.relative_to(folder).as_posix(), (file.stat().st_size, file.stat().st_mtime_ns)
        if sent.get(name) != state:
            yield name, file, state
