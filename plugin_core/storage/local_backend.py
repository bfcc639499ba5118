"""Files at a local path, which may be a network mount: atomic writes, and lookups that bypass the mount's cache."""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import re
import shutil
import stat
import uuid

from plugin_core.storage.small_files import check_size

#: What a writer's file is called until it is whole. It is not listed; a killed writer leaves it.
_TEMPORARY = re.compile(r"\.[0-9a-f]{8}\.tmp$")


class LocalFiles:
    """Small files by absolute path. Raises OSError; see `small_files.SmallFiles`."""

    def read(self, path: str, version: str = "", at_most: int | None = None) -> tuple[bytes | None, str]:
        try:
            with open(path, "rb", opener=_without_waiting) as stream:
                status = os.fstat(stream.fileno())
                if not stat.S_ISREG(status.st_mode):  # a linked device has no size and may never end
                    raise OSError(errno.EINVAL, "it is not a regular file")
                check_size(status.st_size, at_most)
                found = _version(status)
                return (None if found == version else stream.read()), found
        except FileNotFoundError:
            return None, ""

    def write(self, path: str, data: bytes) -> None:
        os.replace(_write_beside(path, data), path)

    def create(self, path: str, data: bytes) -> bool:
        temporary = _write_beside(path, data)
        try:
            os.link(temporary, path)
        except FileExistsError:
            # NFS repeats a request whose answer was lost, and then finds the file that it made
            return os.path.samefile(temporary, path)
        except OSError as exc:
            if exc.errno in (errno.EPERM, errno.EOPNOTSUPP):
                raise OSError(exc.errno, f"{exc.strerror} (the file system has no hard links)", path) from exc
            raise
        finally:
            os.unlink(temporary)
        return True

    def is_file(self, path: str) -> bool:
        """Lists the folder: NFS caches an absent name for up to a minute, but revalidates when a folder is opened."""
        folder, name = posixpath.split(path)
        try:
            return name in os.listdir(folder)
        except FileNotFoundError:
            return False

    def names(self, path: str, after: str = "") -> list[str]:
        # pyarrow's listing fails if the folder or a file in it is created or deleted meanwhile
        return [name for name in os.listdir(path) if name > after and not _TEMPORARY.search(name)]

    def versions(self, path: str) -> dict[str, str]:
        found = {}
        with os.scandir(path) as entries:
            for entry in entries:
                if _TEMPORARY.search(entry.name):
                    continue
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    found[entry.name] = "" if entry.is_dir() else _version(entry.stat())
        return found

    def times(self, path: str) -> dict[str, float]:
        found = {}
        for folder, _, names in os.walk(path, onerror=_unless_absent):
            for name in names:
                file = posixpath.join(folder, name)
                with contextlib.suppress(FileNotFoundError):
                    found[posixpath.relpath(file, path)] = os.lstat(file).st_mtime
        return found

    def delete(self, path: str) -> None:
        os.unlink(path)

    def delete_dir(self, path: str, last: str = "") -> None:
        for name in os.listdir(path) if last else ():
            entry = posixpath.join(path, name)
            if name != last:
                shutil.rmtree(entry) if os.path.isdir(entry) and not os.path.islink(entry) else os.unlink(entry)
        shutil.rmtree(path)

    def abort_uploads(self, path: str) -> int:
        return 0


def _version(status: os.stat_result) -> str:
    """Files are replaced by rename, which changes their inode number."""
    return f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"


def _unless_absent(exc: OSError) -> None:
    """A folder that cannot be listed is not an empty one."""
    if not isinstance(exc, FileNotFoundError):
        raise exc


def _without_waiting(path: str, flags: int) -> int:
    """Opens a file without blocking, in case it is a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


def _write_beside(path: str, data: bytes) -> str:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.{uuid.uuid4().hex[:8]}.tmp"
    try:
        with open(temporary, "xb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
    return temporary
