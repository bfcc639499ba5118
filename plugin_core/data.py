"""Datasets named in a spec: checked where the step is made, loaded as Ray Datasets where it runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from plugin_core.errors import SpecError, StorageError
from plugin_core.functions import check_reference
from plugin_core.record import spec_datasets, spec_functions
from plugin_core.specs import DatasetConfig, StepSpec
from plugin_core.storage import Location

if TYPE_CHECKING:
    import ray.data


def check_functions_and_data(spec: StepSpec, here: bool) -> None:
    """Raise SpecError where a step names a function or a dataset that is not there.

    `here`: the step runs on this machine, in this environment; else only what can be told from here is looked at.
    """
    _, references = spec_functions(spec)
    for name, reference in references.items():
        check_reference(name, reference, must_exist=here)
    for name, dataset in spec_datasets(spec).items():
        check_dataset(name, dataset, label_column=getattr(spec, "label_column", None), here=here)


def check_dataset(field: str, config: DatasetConfig, *, label_column: str | None, here: bool) -> None:
    """Raise SpecError where a dataset's files or columns are missing.

    `here`: local paths are this machine's. A local path of another machine cannot be looked at from here.
    """
    if config.path is None:
        return
    for path in _paths(config):
        location = Location.of(path, f"{field}.path")
        if location.is_local and not here:
            continue
        if not location.exists():
            raise SpecError(f"{field}.path: given {path!r}, where there is nothing; accepted is an existing file or folder")
        wanted = [*(config.columns or []), *([label_column] if label_column else [])]
        if wanted:
            names = _schema_names(field, location, config)
            missing = [name for name in wanted if name not in names]
            if missing:
                source = "label_column" if missing[0] == label_column else f"{field}.columns"
                raise SpecError(f"{source}: given {missing[0]!r}, which {path} has not; accepted are {', '.join(names)}")


def load(config: DatasetConfig, function: Callable[[], Callable[..., Any]]) -> ray.data.Dataset:
    """The Ray Dataset, read lazily. `function` gives the user's function where the config names one."""
    import ray.data

    if config.function is not None:
        dataset: ray.data.Dataset = function()(**config.kwargs)
        return dataset
    locations = [Location.of(path) for path in _paths(config)]
    paths, filesystem = [location.path for location in locations], locations[0].fs
    match config.guessed_format:
        case "parquet":
            _limit_footer_readers()
            return ray.data.read_parquet(paths, filesystem=filesystem, columns=config.columns)
        case "csv":
            dataset = ray.data.read_csv(paths, filesystem=filesystem)
        case _:
            dataset = ray.data.read_json(paths, filesystem=filesystem)
    return dataset.select_columns(config.columns) if config.columns else dataset


def _limit_footer_readers() -> None:
    """Ray Data starts 32 actors that read parquet footers at each pass over the data, however small cluster and data are:
    ten seconds an epoch on two cores. One for two CPUs instead, 32 at the most; the user's own setting wins."""
    import ray

    cpus = int(ray.cluster_resources().get("CPU", 1))
    os.environ.setdefault("RAY_DATA_PARQUET_FOOTER_NUM_ACTORS", str(max(1, min(32, cpus // 2))))


def _paths(config: DatasetConfig) -> list[str]:
    return config.path if isinstance(config.path, list) else [config.path or ""]


def _schema_names(field: str, location: Location, config: DatasetConfig) -> list[str]:
    import pyarrow
    import pyarrow.dataset

    try:
        found = pyarrow.dataset.dataset(location.path, filesystem=location.fs, format=config.guessed_format)
        return list(found.schema.names)
    except pyarrow.ArrowInvalid as exc:
        raise SpecError(
            f"{field}.path: given {location.uri!r}, which is no readable {config.guessed_format}"
            f" ({str(exc).splitlines()[0]})"
        ) from exc
    except OSError as exc:
        raise StorageError(f"{field}.path: {location.uri} cannot be read: {exc}") from exc
