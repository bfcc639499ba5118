"""Find local files that are new or changed since their last upload."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path


def changed_files(folder: Path, sent: dict[str, tuple[int, int]]) -> Iterator[tuple[str, Path, tuple[int, int]]]:
    """Yield (relative name, file, (size, mtime_ns)) for each file whose size or mtime differs from `sent`.

    The caller records each uploaded file in `sent`.
    """
    for place, _, names in sorted(os.walk(folder)):
        for file in sorted(Path(place, name) for name in names):
            try:
                found = file.stat()
            except FileNotFoundError:  # its writer renamed or deleted it meanwhile
                continue
            name, state = file.relative_to(folder).as_posix(), (found.st_size, found.st_mtime_ns)
            if stat.S_ISREG(found.st_mode) and sent.get(name) != state:
                yield name, file, state
