"""Checks a step's functions, datasets and checkpoints before anything is submitted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from plugin_core.errors import SpecError, StorageError
from plugin_core.runs.dataset_fingerprint import arrow_dataset, has_schema
from plugin_core.runs.directory import RunDir
from plugin_core.runs.lineage import check_checkpoint, check_framework
from plugin_core.specs import DatasetConfig, StepSpec
from plugin_core.specs.functions import check_reference, import_function
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
from plugin_core.specs.step_kinds import step_kind
from plugin_core.specs.working_folders import uploaded_folders
from plugin_core.storage.location import Location


def check_functions_and_data(spec: StepSpec, here: bool, current: RunDir | None = None) -> None:
    """Raise SpecError if a step names a missing function, dataset or column, or a checkpoint of another framework, or if
    the check of its kind refuses it.

    `here`: the step runs on this machine, in this environment. Otherwise only what can be checked from here is checked.
    `current`: the newest generation, if the caller has looked it up.
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
    with contextlib.suppress(StorageError):  # then the cluster checks it, and reports it
        check_framework(spec)
    if check := step_kind(spec.kind).check:
        import_function("check", check)(spec, here, current)


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
