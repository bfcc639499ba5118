"""Datasets named in a spec: checked where the step is made, loaded as Ray Datasets where it runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plugin_core.errors import SpecError, StorageError
from plugin_core.functions import check_reference
from plugin_core.lineage import check_framework
from plugin_core.output import check_output
from plugin_core.record import spec_datasets, spec_functions
from plugin_core.rundir import RunDir
from plugin_core.specs import BatchInferSpec, DatasetConfig, Evaluation, StepSpec, TrainSpec, TuneSpec
from plugin_core.storage import Location
from plugin_core.tuning.search import make_scheduler, make_searcher

if TYPE_CHECKING:
    import ray.data


def check_functions_and_data(spec: StepSpec, here: bool) -> None:
    """Raise SpecError where a step names a function, a dataset or a column that is not there, a checkpoint of another
    framework, or an output folder that is not its own.

    `here`: the step runs on this machine, in this environment; else only what can be told from here is looked at.
    """
    _, references = spec_functions(spec)
    for name, reference in references.items():
        check_reference(name, reference, must_exist=here)
    for name, dataset in spec_datasets(spec).items():
        check_dataset(name, dataset, _columns(spec, name), here=here)
    with contextlib.suppress(StorageError):  # the cluster can look, and says it then
        check_framework(spec)
    if isinstance(spec, BatchInferSpec) and spec.output_path is not None:
        output, run = Location.of(spec.output_path, "output_path"), RunDir.of(spec)
        if here or not output.is_local:
            check_output(output, run.location)
    if isinstance(spec, TuneSpec) and here:
        make_scheduler(spec.scheduler)
        make_searcher(spec.search_alg)


def _columns(spec: StepSpec, field: str) -> dict[str, list[str]]:
    """The columns that the step needs of its dataset, by the field that names them."""
    part, _, rest = field.partition(".")
    inner = getattr(spec, part)
    if isinstance(inner, StepSpec):
        return {f"{part}.{name}": columns for name, columns in _columns(inner, rest).items()}
    if isinstance(spec, TrainSpec) and spec.label_column is not None:
        return {"label_column": [spec.label_column]}
    if isinstance(spec, Evaluation) and spec.predictor is not None:
        return {"label_column": [spec.label_column], "slices": spec.slices}
    if isinstance(spec, BatchInferSpec) and spec.key_column is not None:
        return {"key_column": [spec.key_column]}
    return {}


def check_dataset(field: str, config: DatasetConfig, needed: Mapping[str, Sequence[str]], *, here: bool) -> None:
    """Raise SpecError where a dataset's files or columns are missing. `needed`: columns, by the spec's field that
    names them.

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
        wanted = {f"{field}.columns": config.columns or [], **needed}
        if any(wanted.values()):
            names = _schema_names(field, location, config)
            for source, columns in wanted.items():
                for missing in (name for name in columns if name not in names):
                    raise SpecError(f"{source}: given {missing!r}, which {path} has not; accepted are {', '.join(names)}")


def load(
    config: DatasetConfig, function: Callable[[], Callable[..., Any]], *, many_blocks: bool = False
) -> ray.data.Dataset:
    """The Ray Dataset, read lazily. `function` gives the user's function where the config names one. `many_blocks`: so many
    that all actors of a pool have work."""
    import ray.data

    settings = ray.data.DataContext.get_current()
    # what a user's function raises comes as it is, not as an exception of Ray's
    settings.raise_original_map_exception = True
    if many_blocks:
        # Ray's newer parquet reader (2.60) packs up to 128 MiB into one block, whatever `override_num_blocks` says, and a
        # block goes to one actor; the older one heeds `read_op_min_num_blocks` (200)
        settings.use_datasource_v2 = False
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
