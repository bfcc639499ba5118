"""Checks a step's functions, datasets, checkpoints and output folder before anything is submitted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from plugin_core.driver.tune.algorithms import make_scheduler, make_searcher
from plugin_core.errors import SpecError, StorageError
from plugin_core.runs import finished_search
from plugin_core.runs.dataset_fingerprint import arrow_dataset, has_schema
from plugin_core.runs.directory import RunDir
from plugin_core.runs.lineage import check_checkpoint, check_framework
from plugin_core.runs.output_folder import check_output
from plugin_core.specs import BatchInferSpec, DatasetConfig, StepSpec, TuneSpec
from plugin_core.specs.functions import check_reference
from plugin_core.specs.parts import (
    check_format,
    dataset_paths,
    needed_columns,
    needed_rows,
    spec_datasets,
    spec_functions,
    too_few_rows,
)
from plugin_core.specs.results import CheckpointRef
from plugin_core.specs.working_folders import uploaded_folders
from plugin_core.storage.location import Location
from plugin_core.storage.refusals import refusal
from plugin_core.supervisor.generations import newest_run


def check_functions_and_data(spec: StepSpec, here: bool) -> None:
    """Raise SpecError if a step names a missing function, dataset or column, a checkpoint of another framework, or an
    output folder that belongs to another run.

    `here`: the step runs on this machine, in this environment. Otherwise only what can be checked from here is checked.
    """
    _, references = spec_functions(spec)
    uploaded, all_seen = uploaded_folders(spec.runtime_env)
    for name, reference in references.items():
        loop = "train_loop_per_worker" in name.split(".")
        check_reference(name, reference, must_exist=here and all_seen, may_be_class=not loop, uploaded=uploaded)
    for name, dataset in spec_datasets(spec).items():
        check_dataset(name, dataset, needed_columns(spec, name), needed_rows(spec, name, dataset), here=here)
    for name, checkpoint in named_checkpoints(spec):
        if here or not Location.of(checkpoint.uri).is_local:
            check_checkpoint(name, checkpoint.uri)
    if isinstance(spec, TuneSpec):
        _check_starts(spec, here)
    with contextlib.suppress(StorageError):  # then the cluster checks it, and reports it
        check_framework(spec)
    if isinstance(spec, BatchInferSpec) and spec.output_path is not None:
        output, run = Location.of(spec.output_path, "output_path"), RunDir.of(spec)
        if here or not output.is_local:
            try:
                check_output(output, run.location)
            except StorageError as exc:
                if why := refusal(exc):
                    raise SpecError(f"output_path: got {spec.output_path!r}, {why}; expected a folder to write to") from exc
                raise
    if isinstance(spec, TuneSpec) and here:
        make_scheduler(spec.scheduler)
        make_searcher(spec.search_alg)


def _check_starts(spec: TuneSpec, here: bool) -> None:
    """Check the checkpoints that trials may start from."""
    starts = [trial.resume_from.uri for trial in spec.variants() if trial.resume_from is not None]
    for uri in dict.fromkeys(starts):
        if here or not Location.of(uri).is_local:
            check_checkpoint("param_space.resume_from", uri)


def check_resumed_search(spec: StepSpec, here: bool, current: RunDir | None = None) -> None:
    """Raise SpecError if the finished search that a search goes on from does not allow it. A search that has begun goes on
    by what it took from it then. `here`, `current`: as in `prepare`."""
    if not isinstance(spec, TuneSpec) or spec.resume_from is None:
        return
    place = Location.of(spec.resume_from.search, finished_search.FIELD)
    if place.is_local and not here:
        return
    with contextlib.suppress(StorageError):  # then the cluster checks it, and reports it
        if not (current or newest_run(spec)).step.child(finished_search.PLAN).is_file():
            finished_search.check(spec, finished_search.read(spec.resume_from.search))


def named_checkpoints(spec: StepSpec) -> Iterator[tuple[str, CheckpointRef]]:
    """Yield the checkpoints that a step names, with their fields."""
    for name in type(spec).model_fields:
        value = getattr(spec, name)
        if isinstance(value, CheckpointRef):
            yield name, value
        elif isinstance(value, StepSpec):
            yield from ((f"{name}.{inner}", reference) for inner, reference in named_checkpoints(value))


def check_dataset(
    field: str, config: DatasetConfig, needed: Mapping[str, Sequence[str]], rows: int = 0, *, here: bool
) -> None:
    """Raise SpecError if a dataset lacks files, columns, rows, or the package that reads it. `needed`: columns, by the spec
    field that names them; `rows`: the minimum number of rows.

    `here`: local paths are on this machine. Local paths of another machine cannot be checked from here.
    """
    if config.path is None:
        return
    if here:
        check_format(f"{field}.format", config)
    there = 0
    for path in dataset_paths(config):
        location = Location.of(path, f"{field}.path")
        if location.is_local and not here:
            return
        if not location.exists():
            raise SpecError(f"{field}.path: got {path!r}, which does not exist; expected an existing file or folder")
        wanted = {f"{field}.columns": config.columns or [], **needed}
        # in the other formats Ray names the columns, which shows only when they are read
        if has_schema(config) and (any(wanted.values()) or rows):
            found = arrow_dataset(location, config.guessed_format, f"{field}.path")
            names = found.schema.names
            for source, columns in wanted.items():
                for missing in (name for name in columns if name not in names):
                    raise SpecError(f"{source}: got {missing!r}, not found in {path}; expected one of {', '.join(names)}")
            there += found.head(rows).num_rows if there < rows else 0
    if has_schema(config) and config.split is None and there < rows:
        raise too_few_rows(field, config, there, rows)
