"""What a dataset is at this moment, as a short hash: equal as long as it is the same data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from plugin_core.errors import StorageError
from plugin_core.specs import DatasetConfig
from plugin_core.storage import Location


def dataset_fingerprint(config: DatasetConfig) -> str | None:
    """The user's own `version` where there is one; else the files' names, sizes and times of change. None: a function's
    dataset without a version, of which nothing can be told. Raises StorageError where the files cannot be looked at."""
    what: dict[str, Any] = {"columns": config.columns, "format": config.guessed_format, "kwargs": config.kwargs}
    if config.split is not None:
        what["split"] = config.split.model_dump()
    if config.version is not None:
        return _hash({"version": config.version, "path": config.path, **what})
    if config.path is None:
        return None
    paths = config.path if isinstance(config.path, list) else [config.path]
    return _hash({"files": [file for path in paths for file in _files(path)], **what})


def fingerprint_of_all(datasets: Mapping[str, DatasetConfig]) -> str | None:
    """Of several datasets by name; None where one of them has none, or there are none."""
    each = {name: dataset_fingerprint(config) for name, config in datasets.items()}
    return _hash(each) if each and None not in each.values() else None


def _files(path: str) -> list[tuple[str, int, int]]:
    from pyarrow.fs import FileSelector, FileType

    place = Location.of(path)
    try:
        info = place.fs.get_file_info(place.path)
        single = info.type == FileType.File
        found = [info] if single else place.fs.get_file_info(FileSelector(place.path, recursive=True))
    except OSError as exc:
        raise StorageError(f"{place.uri} cannot be looked at: {exc}") from exc
    return sorted((file.path, file.size, file.mtime_ns or 0) for file in found if file.type == FileType.File)


def _hash(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()[:16]
