"""A spec's datasets, loaded as Ray Datasets where the step runs."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from plugin_core.errors import SpecError
from plugin_core.runs.dataset_fingerprint import has_schema
from plugin_core.specs import DatasetConfig, SplitConfig, TrainSpec
from plugin_core.specs.parts import check_format, dataset_paths, needed_rows, too_few_rows
from plugin_core.storage.location import Location

if TYPE_CHECKING:
    import ray.data


def check_rows(spec: TrainSpec, datasets: Mapping[str, ray.data.Dataset]) -> None:
    """Raise SpecError if a dataset that could not be counted before the submit has too few rows."""
    for name, dataset in datasets.items():
        config, rows = spec.datasets[name], needed_rows(spec, f"datasets.{name}", spec.datasets[name])
        if not has_schema(config) or config.split is not None:
            there = len(dataset.take(rows))
            if there < rows:
                raise too_few_rows(f"datasets.{name}", config, there, rows)


def load(config: DatasetConfig, function: Callable[[], Callable[..., Any]], *, for_pool: bool = False) -> ray.data.Dataset:
    """Load the Ray Dataset, lazily. `function` returns the user's function if the config names one. `for_pool`: an actor
    pool maps the dataset for the driver, so it gets enough blocks for all actors, and Ray Data logs its progress."""
    import ray.data

    settings = ray.data.DataContext.get_current()
    # exceptions of a user's function are raised unchanged, not wrapped in Ray's
    settings.raise_original_map_exception = True
    if for_pool:
        # Ray's V2 parquet reader (2.60) packs up to 128 MiB into one block, ignoring `override_num_blocks`, and a block
        # goes to one actor; the V1 reader honours `read_op_min_num_blocks` (200)
        settings.use_datasource_v2 = False
    dataset = function()(**config.kwargs) if config.function is not None else _read(config)
    if config.columns and config.guessed_format != "parquet" and config.path is not None:
        dataset = dataset.select_columns(config.columns)
    if config.split is not None:
        with warnings.catch_warnings():
            # Ray recommends an expression, and no expression hashes a row
            warnings.filterwarnings("ignore", message="Use 'expr' instead of 'fn'")
            dataset = dataset.filter(functools.partial(in_part, split=config.split))
    if config.shuffle_seed is not None:
        seed = ray.data.RandomSeedConfig(config.shuffle_seed, reseed_after_execution=config.reshuffle)
        dataset = dataset.random_shuffle(seed=seed)
    if for_pool:
        dataset.context.enable_progress_bars = True  # without a terminal they become log lines
    return dataset.materialize() if config.materialize else dataset


def in_part(row: Mapping[str, Any], split: SplitConfig) -> bool:
    """Whether a row belongs to the split; depends on the row alone. Raises KeyError if a column is missing."""
    digest = hashlib.blake2b(str(split.seed).encode(), digest_size=8)
    for name in sorted(split.by if split.by is not None else row):
        value = row[name]
        digest.update(name.encode() + b"=")
        digest.update(value.tobytes() if hasattr(value, "tobytes") else repr(value).encode())
    share = int.from_bytes(digest.digest(), "big") / 2**64
    return (share < split.test_size) == (split.part == "test")


def _read(config: DatasetConfig) -> ray.data.Dataset:
    import ray.data

    check_format("format", config)
    locations = [Location.of(path) for path in dataset_paths(config)]
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
    """Read the output of `datasets.Dataset.save_to_disk`: arrow files, and a state.json that lists them in order."""
    import ray
    import ray.data

    files = []
    for location in locations:
        state = json.loads(location.child("state.json").read() or b"{}")
        found = [location.child(entry["filename"]).uri for entry in state.get("_data_files", [])]
        if not found:
            raise SpecError(
                f"path: got {location.uri!r}, which has no state.json that lists files; expected a folder written by"
                " datasets.Dataset.save_to_disk (format huggingface)"
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
    """Limit the actors that read parquet footers to one per two CPUs, at most 32; a user's own setting wins. By default
    Ray Data starts 32 of them at each pass over the data, whatever its size: ten seconds per epoch on two cores."""
    import ray

    cpus = int(ray.cluster_resources().get("CPU", 1))
    os.environ.setdefault("RAY_DATA_PARQUET_FOOTER_NUM_ACTORS", str(max(1, min(32, cpus // 2))))
