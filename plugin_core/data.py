"""Datasets named in a spec: checked where the step is made, loaded as Ray Datasets where it runs."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plugin_core.errors import SpecError, StorageError
from plugin_core.fingerprints import arrow_dataset, has_schema
from plugin_core.functions import check_reference
from plugin_core.lineage import check_checkpoint, check_framework
from plugin_core.output import check_output
from plugin_core.record import spec_datasets, spec_functions
from plugin_core.results import CheckpointRef
from plugin_core.rundir import RunDir
from plugin_core.specs import BatchInferSpec, DatasetConfig, Evaluation, SplitConfig, StepSpec, TrainSpec, TuneSpec
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
        check_dataset(name, dataset, _columns(spec, name), _rows(spec, name, dataset), here=here)
    for name, checkpoint in _checkpoints(spec):
        if here or not Location.of(checkpoint.uri).is_local:
            check_checkpoint(name, checkpoint.uri)
    with contextlib.suppress(StorageError):  # the cluster can look, and says it then
        check_framework(spec)
    if isinstance(spec, BatchInferSpec) and spec.output_path is not None:
        output, run = Location.of(spec.output_path, "output_path"), RunDir.of(spec)
        if here or not output.is_local:
            check_output(output, run.location)
    if isinstance(spec, TuneSpec) and here:
        make_scheduler(spec.scheduler)
        make_searcher(spec.search_alg)


def _checkpoints(spec: StepSpec) -> Iterator[tuple[str, CheckpointRef]]:
    """The checkpoints that a step names, by field."""
    for name in type(spec).model_fields:
        value = getattr(spec, name)
        if isinstance(value, CheckpointRef):
            yield name, value
        elif isinstance(value, StepSpec):
            yield from ((f"{name}.{inner}", reference) for inner, reference in _checkpoints(value))


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


def check_dataset(
    field: str, config: DatasetConfig, needed: Mapping[str, Sequence[str]], rows: int = 0, *, here: bool
) -> None:
    """Raise SpecError where a dataset's files, columns or rows are missing. `needed`: columns, by the spec's field that
    names them; `rows`: so many at the least.

    `here`: local paths are this machine's. A local path of another machine cannot be looked at from here.
    """
    if config.path is None:
        return
    there = 0
    for path in _paths(config):
        location = Location.of(path, f"{field}.path")
        if location.is_local and not here:
            return
        if not location.exists():
            raise SpecError(f"{field}.path: given {path!r}, where there is nothing; accepted is an existing file or folder")
        wanted = {f"{field}.columns": config.columns or [], **needed}
        # the other formats have columns of Ray's naming, which show when they are read
        if has_schema(config) and (any(wanted.values()) or rows):
            found = arrow_dataset(location, config.guessed_format, f"{field}.path")
            names = found.schema.names
            for source, columns in wanted.items():
                for missing in (name for name in columns if name not in names):
                    raise SpecError(f"{source}: given {missing!r}, which {path} has not; accepted are {', '.join(names)}")
            there += found.head(rows).num_rows if there < rows else 0
    if has_schema(config) and config.split is None and there < rows:
        raise _too_few(field, config, there, rows)


def _rows(spec: StepSpec, field: str, config: DatasetConfig) -> int:
    """How many rows the step needs of a dataset at the least: in a training one for each worker, or some wait for ever."""
    inner = getattr(spec, field.partition(".")[0])
    if isinstance(inner, StepSpec):
        return _rows(inner, field.partition(".")[2], config)
    if isinstance(spec, TrainSpec):
        return spec.scaling_config.worker_range[0] if config.shard else 1
    return 1 if isinstance(spec, Evaluation) else 0


def check_rows(spec: TrainSpec, datasets: Mapping[str, ray.data.Dataset]) -> None:
    """Raise SpecError where a dataset that could not be counted before the submit has too few rows."""
    for name, dataset in datasets.items():
        config, rows = spec.datasets[name], _rows(spec, f"datasets.{name}", spec.datasets[name])
        if not has_schema(config) or config.split is not None:
            there = len(dataset.take(rows))
            if there < rows:
                raise _too_few(f"datasets.{name}", config, there, rows)


def _too_few(field: str, config: DatasetConfig, there: int, rows: int) -> SpecError:
    given = f"given {config.path or config.function!r}{' split' if config.split is not None else ''}"
    return SpecError(
        f"{field}: {given}, which {f'has {there} rows' if there else 'is empty'}; accepted are at least {rows},"
        " one for each worker"
        if rows > 1
        else f"{field}: {given}, which is empty; accepted is at least one row"
    )


def load(config: DatasetConfig, function: Callable[[], Callable[..., Any]], *, for_pool: bool = False) -> ray.data.Dataset:
    """The Ray Dataset, read lazily. `function` gives the user's function where the config names one. `for_pool`: a
    pool of actors maps it for the driver, so it has blocks for all of them, and Ray Data logs how far it is."""
    import ray.data

    settings = ray.data.DataContext.get_current()
    # what a user's function raises comes as it is, not as an exception of Ray's
    settings.raise_original_map_exception = True
    if for_pool:
        # Ray's newer parquet reader (2.60) packs up to 128 MiB into one block, whatever `override_num_blocks` says, and a
        # block goes to one actor; the older one heeds `read_op_min_num_blocks` (200)
        settings.use_datasource_v2 = False
    dataset = function()(**config.kwargs) if config.function is not None else _read(config)
    if config.columns and config.guessed_format != "parquet" and config.path is not None:
        dataset = dataset.select_columns(config.columns)
    if config.split is not None:
        dataset = dataset.filter(functools.partial(in_part, split=config.split))
    if config.shuffle_seed is not None:
        dataset = dataset.random_shuffle(seed=config.shuffle_seed)
    if for_pool:
        dataset.context.enable_progress_bars = True  # which the driver, without a terminal, has as lines of its log
    return dataset.materialize() if config.materialize else dataset


def in_part(row: Mapping[str, Any], split: SplitConfig) -> bool:
    """Whether a row is of the part; told by the row alone. Raises KeyError for a column that it has not."""
    digest = hashlib.blake2b(str(split.seed).encode(), digest_size=8)
    for name in sorted(split.by if split.by is not None else row):
        value = row[name]
        digest.update(name.encode() + b"=")
        digest.update(value.tobytes() if hasattr(value, "tobytes") else repr(value).encode())
    share = int.from_bytes(digest.digest(), "big") / 2**64
    return (share < split.test_size) == (split.part == "test")


def _read(config: DatasetConfig) -> ray.data.Dataset:
    import ray.data

    locations = [Location.of(path) for path in _paths(config)]
    paths, filesystem = [location.path for location in locations], locations[0].fs
    match config.guessed_format:
        case "parquet":
            _limit_footer_readers()
            return ray.data.read_parquet(paths, filesystem=filesystem, columns=config.columns)
        case "huggingface":
            return _huggingface(locations)
        case name:
            return getattr(ray.data, f"read_{name}")(paths, filesystem=filesystem)


def _huggingface(locations: list[Location]) -> ray.data.Dataset:
    """What `datasets.Dataset.save_to_disk` wrote: arrow files, and a state that names them in order."""
    import ray
    import ray.data

    files = []
    for location in locations:
        state = json.loads(location.child("state.json").read() or b"{}")
        found = [location.child(entry["filename"]).uri for entry in state.get("_data_files", [])]
        if not found:
            raise SpecError(
                f"path: given {location.uri!r}, which holds no state.json that names files; accepted for the format"
                " huggingface is what datasets.Dataset.save_to_disk wrote"
            )
        files += found
    read = ray.remote(_read_stream)
    return ray.data.from_arrow_refs([read.remote(file) for file in files])


def _read_stream(uri: str) -> Any:
    import pyarrow.ipc

    place = Location.of(uri)
    with place.fs.open_input_stream(place.path) as stream, pyarrow.ipc.open_stream(stream) as reader:
        return reader.read_all()


def _limit_footer_readers() -> None:
    """Ray Data starts 32 actors that read parquet footers at each pass over the data, however small cluster and data are:
    ten seconds an epoch on two cores. One for two CPUs instead, 32 at the most; the user's own setting wins."""
    import ray

    cpus = int(ray.cluster_resources().get("CPU", 1))
    os.environ.setdefault("RAY_DATA_PARQUET_FOOTER_NUM_ACTORS", str(max(1, min(32, cpus // 2))))


def _paths(config: DatasetConfig) -> list[str]:
    return config.path if isinstance(config.path, list) else [config.path or ""]
