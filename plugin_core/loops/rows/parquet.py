"""Rows of parquet files on any storage, read by row group."""

from __future__ import annotations

import hashlib
import posixpath
import threading
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, TypeVar

from plugin_core.errors import SpecError, StorageError
from plugin_core.errors.shown import did_you_mean, shown
from plugin_core.loops.rows.blocks import BlockRows
from plugin_core.storage.location import Location
from plugin_core.storage.threads import parallel

T = TypeVar("T")

#: How many footers are kept in memory. Reading a row group reads its file's footer again if it is not among them.
_FOOTERS = 256


class ParquetRows(BlockRows):
    """Batches of the rows of parquet files. At the start, each rank reads the footers of all files, then the row groups
    of its own part. Columns encoded in the path (Hive partitions) are not added."""

    def __init__(
        self, paths: list[str], columns: list[str] | None, filesystem: Any, *, seed: int, shuffle: bool, **options: Any
    ):
        self._fs, self._files = _listed(paths, filesystem)
        self._columns = columns
        self._footer = lru_cache(_FOOTERS)(self._read_footer)
        #: the file that was read last, by its number: often the next one too
        self._opened: tuple[int, Any] | None = None
        self._reading_one = threading.Lock()
        groups = parallel(self._group_rows, range(len(self._files)))
        self._groups = [(file, group) for file, rows in enumerate(groups) for group in range(len(rows))]
        self._check_columns()
        digest = hashlib.sha256()
        for (name, info), rows in zip(self._files, groups, strict=True):
            digest.update(repr((name, info.size, info.mtime_ns, rows)).encode())
        block_rows = [rows for group in groups for rows in group]
        super().__init__(block_rows, digest.hexdigest()[:32], seed=seed, shuffle=shuffle, **options)

    def _read(self, block: int) -> Any:
        file, group = self._groups[block]
        with self._reading_one:
            if self._opened is not None and self._opened[0] != file:
                self._opened[1].close()
                self._opened = None
            if self._opened is None:
                self._opened = file, self._open(file, self._footer(file))
            parquet = self._opened[1]
            return _reading(self._files[file][1].path, lambda: parquet.read_row_group(group, columns=self._columns))

    def _open(self, file: int, footer: Any = None) -> Any:
        from pyarrow.parquet import ParquetFile

        path = self._files[file][1].path
        return _reading(path, lambda: ParquetFile(path, metadata=footer, filesystem=self._fs, pre_buffer=True))

    def _read_footer(self, file: int) -> Any:
        with self._open(file) as parquet:
            return parquet.metadata

    def _group_rows(self, file: int) -> list[int]:
        footer = self._footer(file)
        return [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]

    def _check_columns(self) -> None:
        names = self._footer(0).schema.to_arrow_schema().names
        for column in self._columns or ():
            if column.partition(".")[0] not in names:  # a.b is a field of a struct
                meant = did_you_mean(column, names) or f"; expected some of {', '.join(names[:20])}"
                raise SpecError(f"columns: got {shown(column)}, not found in {self._files[0][1].path}{meant}")


def _listed(paths: list[str], filesystem: Any) -> tuple[Any, list[tuple[str, Any]]]:
    """The filesystem and the parquet files, each with its name: its path relative to the given one."""
    places = [Location.of(path, "paths") for path in paths] if filesystem is None else []
    storage = places[0].fs if places else filesystem
    if any(not place.fs.equals(storage) for place in places):
        raise SpecError(f"paths: got {shown(paths)}, on several storages; expected one")
    files = []
    for number, path in enumerate([place.path for place in places] or paths):
        found = _reading(path, partial(_below, storage, path))
        if not found:
            raise SpecError(
                f"paths: got {shown(paths[number])}, which has no parquet files; expected files or folders of them"
            )
        files += [(f"{number}/{name}", info) for name, info in found]
    return storage, files


def _below(storage: Any, path: str) -> list[tuple[str, Any]]:
    """The file at a path, or the *.parquet files below it, sorted, with names relative to it."""
    from pyarrow.fs import FileSelector, FileType

    info = storage.get_file_info(path)
    if info.type == FileType.File:
        return [(posixpath.basename(path), info)]
    found = storage.get_file_info(FileSelector(path, recursive=True, allow_not_found=True))
    named = {posixpath.relpath(info.path, path or "."): info for info in found if info.type == FileType.File}
    return [(name, info) for name, info in sorted(named.items()) if name.endswith(".parquet") and not _is_hidden(name)]


def _is_hidden(name: str) -> bool:
    return any(part.startswith((".", "_")) for part in name.split("/"))


def _reading(path: str, read: Callable[[], T]) -> T:
    """The result of `read`. Raises SpecError for a file that is not parquet, StorageError for other storage errors."""
    from pyarrow import ArrowInvalid

    try:
        return read()
    except ArrowInvalid as exc:
        raise SpecError(f"paths: got {shown(path)}; expected readable parquet ({exc})") from exc
    except OSError as exc:
        raise StorageError(f"{path} cannot be read: {exc}") from exc
