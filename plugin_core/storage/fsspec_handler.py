"""A pyarrow handler for fsspec filesystems that never reports an unreadable file as absent.

pyarrow's own handler calls fsspec's `isfile`, `isdir` and `exists`, which return False on any error (fsspec 2026.9,
pyarrow 25); this one calls `info`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from pyarrow import PythonFile
from pyarrow.fs import FileInfo, FileSelector, FileType, FSSpecHandler

#: The keys under which fsspec filesystems report a file's modification time.
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "created")


class Handler(FSSpecHandler):
    def get_file_info(self, paths: list[str]) -> list[FileInfo]:
        return [self._info(path) for path in paths]

    def _info(self, path: str) -> FileInfo:
        try:
            return _file_info(path, self.fs.info(path))
        except FileNotFoundError:
            return FileInfo(path, FileType.NotFound)

    def get_file_info_selector(self, selector: FileSelector) -> list[FileInfo]:
        base = self._info(selector.base_dir)
        if base.type == FileType.NotFound:
            if selector.allow_not_found:
                return []
            raise FileNotFoundError(selector.base_dir)
        if base.type != FileType.Directory:
            raise NotADirectoryError(selector.base_dir)
        return list(self._below(selector.base_dir, selector.recursive))

    def _below(self, folder: str, recursive: bool) -> Iterator[FileInfo]:
        for entry in self.fs.ls(folder, detail=True):
            if entry["name"].strip("/") == folder.strip("/"):
                continue
            yield _file_info(entry["name"], entry)
            if recursive and entry["type"] == "directory":
                yield from self._below(entry["name"], recursive)

    def open_input_stream(self, path: str) -> PythonFile:
        return PythonFile(self.fs.open(path, mode="rb"), mode="r")

    def open_input_file(self, path: str) -> PythonFile:
        return PythonFile(self.fs.open(path, mode="rb"), mode="r")

    def delete_file(self, path: str) -> None:
        self.fs.info(path)
        self.fs.rm(path)


def _file_info(path: str, info: dict[str, Any]) -> FileInfo:
    kind = {"file": FileType.File, "directory": FileType.Directory}.get(info["type"], FileType.Unknown)
    time = next((info[name] for name in _TIMES if isinstance(info.get(name), (datetime, int, float))), None)
    return FileInfo(path, kind, size=info["size"] if kind == FileType.File else None, mtime=time)
