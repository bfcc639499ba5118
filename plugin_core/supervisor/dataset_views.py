"""What a step's datasets contain and how its workers share them, for people. Data is read here; nothing is submitted.

Parquet, CSV and JSON files are read with pyarrow: the schema and the first rows and, for Parquet, the number of rows
from the footers. Everything else, functions included, is read by Ray Data, on a Ray in this process.
"""

from __future__ import annotations

import contextlib
import datetime
import decimal
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plugin_core.driver.datasets import load
from plugin_core.errors import InfrastructureError, SpecError, StorageError
from plugin_core.errors.classify import classify
from plugin_core.errors.redaction import redacted, shown_uri
from plugin_core.errors.shown import is_private, shown
from plugin_core.runs.dataset_fingerprint import arrow_dataset, has_schema
from plugin_core.specs import DatasetConfig, StepSpec, TrainSpec
from plugin_core.specs.functions import check_reference, import_function
from plugin_core.specs.json_values import json_safe
from plugin_core.specs.parts import dataset_paths, needed_columns, needed_rows, owner, spec_datasets
from plugin_core.storage.location import Location
from plugin_core.supervisor.preflight import check_dataset

if TYPE_CHECKING:
    import ray.data

#: Files of up to this many bytes are read completely to count their rows, even without being asked to.
COUNTED_BYTES = 64 * 2**20
#: The most characters of a text, and the most numbers of an array, that are shown.
CHARACTERS, NUMBERS = 200, 8


@dataclass(frozen=True)
class Share:
    """What a split leaves of the rows. `rows`: their number, None if unknown; `exact`: whether they were counted, not
    estimated by `test_size`."""

    part: str
    test_size: float
    rows: int | None
    exact: bool


@dataclass(frozen=True)
class DatasetView:
    """`source`: paths without secrets, or the function's name. `schema`: column → type. `rows`: the number in all the
    files or in what the function returns, before a split; None if not counted. `first`: the first rows (with `split`:
    those before it, unless Ray Data read them), with values shortened and without secrets. `shard`, `workers`: for a
    training, whether the workers share the rows (None: its `data_config` decides), and the lowest and highest number of
    workers. `rows_per_worker`: for the lowest and the highest number; shards have equal numbers of rows, so up to
    `workers` - 1 rows are left out.
    """

    dataset: str
    source: list[str]
    format: str
    schema: dict[str, str]
    rows: int | None
    first: list[dict[str, Any]]
    split: Share | None = None
    shuffle_seed: int | None = None
    shard: bool | None = None
    workers: list[int] | None = None
    rows_per_worker: list[int] | None = None


def dataset_views(spec: StepSpec, rows: int, count: bool, tell: Callable[[str], None]) -> Iterator[DatasetView]:
    """Look at each dataset of a step, checked as before a submit. `rows`: how many are shown. `count`: count them, and
    those of a split, even if all the data must be read. `tell`: gets a line when Ray is started.

    Raises SpecError about what a submit would refuse, the error of the user's function, and StorageError.
    """
    with contextlib.ExitStack() as stack:
        for field, config in spec_datasets(spec).items():
            check_dataset(field, config, needed_columns(spec, field), needed_rows(spec, field, config), here=True)
            if config.function is not None and isinstance(config.function, str):
                check_reference(f"{field}.function", config.function, must_exist=True)
            if not has_schema(config) or (count and config.split is not None):
                stack.enter_context(_ray(field, tell))
            # the user's code may print, and stdout is for the answer
            with _failures(field, config), contextlib.redirect_stdout(sys.stderr):
                view = _view(spec, field, config, rows, count)
            yield view


def _view(spec: StepSpec, field: str, config: DatasetConfig, rows: int, count: bool) -> DatasetView:
    counted = count or config.guessed_format == "parquet" or (config.path is not None and _bytes(config) <= COUNTED_BYTES)
    if has_schema(config):
        schema, first, found = _by_arrow(field, config, rows, counted)
        part = _by_ray(field, config).count() if count and config.split is not None else None
    else:
        dataset = _by_ray(field, config)
        schema, first = _schema_of(dataset), dataset.take(rows) if rows else []
        found = part = dataset.count() if counted else None
        if config.split is not None and counted:
            found = _by_ray(field, config.model_copy(update={"split": None})).count()
    split = None
    if config.split is not None:
        size, exact = config.split.test_size, part is not None
        if part is None and found is not None:
            part = round(found * (size if config.split.part == "test" else 1 - size))
        split = Share(config.split.part, size, part, exact)
    return DatasetView(
        dataset=field,
        source=[shown_uri(path) for path in dataset_paths(config)] if config.path is not None else [_name(config)],
        format=config.guessed_format or "function",
        schema=schema,
        rows=found,
        first=[{name: _value(name, value) for name, value in row.items()} for row in first],
        split=split,
        shuffle_seed=config.shuffle_seed,
        **_workers(owner(spec, field), config, split.rows if split is not None else found),
    )


def _workers(step: StepSpec, config: DatasetConfig, rows: int | None) -> dict[str, Any]:
    """How the workers of a training share the rows; other steps have none."""
    if not isinstance(step, TrainSpec):
        return {}
    workers = sorted(set(step.scaling_config.worker_range))
    if step.data_config is not None:
        return {"workers": workers}
    each = [rows // number if config.shard else rows for number in workers] if rows is not None else None
    return {"shard": config.shard, "workers": workers, "rows_per_worker": each}


def _name(config: DatasetConfig) -> str:
    return config.function if isinstance(config.function, str) else getattr(config.function, "__qualname__", "a function")


def _bytes(config: DatasetConfig) -> int:
    found = 0
    for path in dataset_paths(config):
        place = Location.of(path)
        found += sum(info.size or 0 for info in place.files().values()) if not place.is_file() else _size(place)
    return found


def _size(place: Location) -> int:
    return place.info().size or 0


# ---- files, by pyarrow


def _by_arrow(field: str, config: DatasetConfig, rows: int, count: bool) -> tuple[dict[str, str], list[Any], int | None]:
    """The schema, the first rows, and the number of all rows if they are to be counted."""
    places = map(Location.of, dataset_paths(config))
    datasets = [arrow_dataset(place, config.guessed_format, f"{field}.path") for place in places]
    schema = datasets[0].schema
    first: list[Any] = []
    for dataset in datasets:
        if len(first) < rows:
            # little at a time: a row may hold an image
            few = {"batch_size": rows, "batch_readahead": 1, "fragment_readahead": 1}
            first += dataset.head(rows - len(first), columns=config.columns, **few).to_pylist()
    names = config.columns or schema.names
    types = {name: str(schema.field(name).type) for name in names}
    return types, first, sum(dataset.count_rows() for dataset in datasets) if count else None


# ---- everything else, by Ray Data


@contextlib.contextmanager
def _ray(field: str, tell: Callable[[str], None]) -> Iterator[None]:
    """A Ray for this block: the one this process is connected to, or its own."""
    import ray

    if ray.is_initialized():
        yield
        return
    tell(f"starting Ray in this process to read {field}")
    os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
    try:
        ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="warning")
    except Exception as exc:  # Ray raises a plain Exception if its processes take too long
        raise InfrastructureError(f"{field}: Ray, which reads it, did not start in this process: {exc}") from exc
    try:
        yield
    finally:
        ray.shutdown()


def _by_ray(field: str, config: DatasetConfig) -> ray.data.Dataset:
    """The dataset as the step loads it, but in the order of the files."""
    import ray.data

    plain = config.model_copy(update={"shuffle_seed": None, "reshuffle": False, "materialize": False})
    dataset = load(plain, lambda: _function(f"{field}.function", config))
    if not isinstance(dataset, ray.data.Dataset):
        raise SpecError(
            f"{field}.function: got one that returns {type(dataset).__name__}; expected one that returns a Ray Dataset"
        )
    return dataset


def _function(field: str, config: DatasetConfig) -> Callable[..., Any]:
    return config.function if callable(config.function) else import_function(field, config.function or "")


def _schema_of(dataset: ray.data.Dataset) -> dict[str, str]:
    schema = dataset.schema()
    return {name: str(kind) for name, kind in zip(schema.names, schema.types, strict=True)} if schema is not None else {}


# ---- errors and values


@contextlib.contextmanager
def _failures(field: str, config: DatasetConfig) -> Iterator[None]:
    """Turn what a reader or the user's function raises into our errors."""
    import pyarrow

    try:
        yield
    except pyarrow.ArrowInvalid as exc:
        given = shown_uri(dataset_paths(config)[0])
        first = str(exc).splitlines()[0]
        raise SpecError(f"{field}.path: got {given!r}; expected readable {config.guessed_format} ({first})") from exc
    except OSError as exc:
        raise StorageError(f"{field}: cannot be read: {exc}") from exc
    except Exception as exc:
        raise classify(exc) from exc


def _value(name: str, value: Any) -> Any:
    """A value as JSON data, for people: short, and without what may be secret."""
    if is_private(name):
        return shown(value, name)
    if hasattr(value, "dtype") and getattr(value, "size", 0) > NUMBERS:
        return f"{value.dtype} array of {'×'.join(map(str, value.shape))}"
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if value is None or isinstance(value, (bool, int, float)):
        return json_safe(value)
    if hasattr(value, "tolist"):
        return _value(name, value.tolist())
    if isinstance(value, list):
        return [_value(name, item) for item in value] if len(value) <= NUMBERS else f"list of {len(value)}"
    as_text = isinstance(value, (str, datetime.date, datetime.time, datetime.timedelta, decimal.Decimal))
    text = redacted(str(value)) if as_text else shown(value)
    return text if len(text) <= CHARACTERS else f"{text[:CHARACTERS]}…"
