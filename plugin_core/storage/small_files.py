"""The storage interface that a run directory needs."""

from __future__ import annotations

import errno
from typing import Protocol


class SmallFiles(Protocol):
    """What a run directory needs from a storage, in as few requests as possible. Raises the storage's own errors, and
    FileNotFoundError if the path does not exist.

    `read`: the content and its version; (None, `version`) if the version is unchanged, (None, "") if the file is absent;
    OSError (EFBIG) if it is larger than `at_most` bytes.
    `write`: replace atomically. `create`: create if absent, and return whether it did; None if that is not known to be
    atomic, so that the storage can hold data but not runs. `is_file`: whether the file exists now. `names`: the entries
    directly under a path; `after`: only names that sort after this one. `versions`: the same with versions, which change
    when a file is rewritten; "" for a folder. `delete_dir`: the folder `last` in it at the end, so that a killed
    deletion leaves it. `times`: see `Location.times`. `abort_uploads`: see `Location.abort_uploads`.
    """

    def read(self, path: str, version: str = "", at_most: int | None = None) -> tuple[bytes | None, str]: ...
    def write(self, path: str, data: bytes) -> None: ...
    def create(self, path: str, data: bytes) -> bool | None: ...
    def is_file(self, path: str) -> bool: ...
    def names(self, path: str, after: str = "") -> list[str]: ...
    def versions(self, path: str) -> dict[str, str]: ...
    def times(self, path: str) -> dict[str, float]: ...
    def delete(self, path: str) -> None: ...
    def delete_dir(self, path: str, last: str = "") -> None: ...
    def abort_uploads(self, path: str) -> int: ...


def check_size(size: int, at_most: int | None) -> None:
    """Raise OSError if a file is larger than its reader accepts."""
    if at_most is not None and size > at_most:
        raise OSError(errno.EFBIG, f"it is larger than the {at_most} bytes allowed")
