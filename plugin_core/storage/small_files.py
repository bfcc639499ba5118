"""What a run directory needs of a storage."""

from __future__ import annotations

import errno
from typing import Protocol


class SmallFiles(Protocol):
    """What a run directory needs of a storage, each with as few requests as it can. Raises the storage's own errors,
    FileNotFoundError where there is nothing.

    `read`: the content and its version; (None, `version`) where it is still of that one, (None, "") where there is none;
    OSError (EFBIG) where there are more than `at_most` bytes.
    `write`: replace it atomically. `create`: write it unless it is there, whether it did; None where that is not known to
    be atomic, so that the storage can hold data, but not runs. `is_file`: whether it is there now. `names`: of what lies
    directly under a path; `after`: those that come after this name. `versions`: the same with what is another one after a
    file was written anew; of a folder it is "". `abort_uploads`: see `Location.abort_uploads`.
    """

    def read(self, path: str, version: str = "", at_most: int | None = None) -> tuple[bytes | None, str]: ...
    def write(self, path: str, data: bytes) -> None: ...
    def create(self, path: str, data: bytes) -> bool | None: ...
    def is_file(self, path: str) -> bool: ...
    def names(self, path: str, after: str = "") -> list[str]: ...
    def versions(self, path: str) -> dict[str, str]: ...
    def delete(self, path: str) -> None: ...
    def delete_dir(self, path: str) -> None: ...
    def abort_uploads(self, path: str) -> int: ...


def check_size(size: int, at_most: int | None) -> None:
    """Raise OSError where a file is larger than its reader takes."""
    if at_most is not None and size > at_most:
        raise OSError(errno.EFBIG, f"it is larger than the {at_most} bytes that such a file may have")
