"""Fingerprint a dataset's current content: the hash stays equal as long as the data does."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from plugin_core.errors import SpecError, StorageError
from plugin_core.specs import DatasetConfig
from plugin_core.storage.location import Location


def dataset_fingerprint(config: DatasetConfig) -> str | None:
    """Hash the user's `version`, if set; else the files' names, sizes and mtimes, and the schema if the format has one.
    None for a function's dataset without a version. Raises StorageError if the files cannot be looked up."""
    what: dict[str, Any] = {"columns": config.columns, "format": config.guessed_format, "kwargs": config.kwargs}
    if config.split is not None:
        what["split"] = config.split.model_dump()
    if config.version is not None:
        return _hash({"version": config.version, "path": config.path, **what})
    if config.path is None:
        return None
    paths = config.path if isinstance(config.path, list) else [config.path]
    schemas = [str(schema_of(Location.of(path), config.guessed_format)) for path in paths] if has_schema(config) else []
    return _hash({"files": [file for path in paths for file in _files(path)], "schemas": schemas, **what})


def has_schema(config: DatasetConfig) -> bool:
    """Whether the format has a schema that can be read without Ray; for other formats Ray names the columns."""
    return config.path is not None and config.guessed_format in ("parquet", "csv", "json")


def schema_of(location: Location, file_format: str | None) -> Any:
    """The pyarrow schema of files. Raises SpecError if they have a different format, and StorageError."""
    return arrow_dataset(location, file_format).schema


def arrow_dataset(location: Location, file_format: str | None, field: str = "path") -> Any:
    """The files as a pyarrow dataset. Raises SpecError about `field` if they have a different format, and StorageError."""
    import pyarrow
    import pyarrow.dataset

    try:
        return pyarrow.dataset.dataset(location.path, filesystem=location.fs, format=file_format)
    except pyarrow.ArrowInvalid as exc:
        raise SpecError(
            f"{field}: got {location.uri!r}; expected readable {file_format} ({str(exc).splitlines()[0]})"
        ) from exc
    except location.errors as exc:
        raise StorageError(f"{field}: {location.uri} cannot be read: {exc}") from exc


def fingerprint_of_all(datasets: Mapping[str, DatasetConfig]) -> str | None:
    """The fingerprint of several named datasets; None if there are none, or one has no fingerprint."""
    each = {name: dataset_fingerprint(config) for name, config in datasets.items()}
    return _hash(each) if each and None not in each.values() else None


def _files(path: str) -> list[tuple[str, int, int]]:
    from pyarrow.fs import FileType

    place = Location.of(path)
    info = place.info()
    if info.type == FileType.NotFound:
        raise StorageError(f"{place.uri} cannot be looked up: it does not exist")
    found = [info] if info.type == FileType.File else place.files().values()
    return sorted((file.path, file.size, file.mtime_ns or 0) for file in found)


def _hash(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()[:16]
