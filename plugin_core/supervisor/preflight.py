"""TODO"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from plugin_core.driver.tune.algorithms import make_scheduler, make_searcher
from plugin_core.errors import SpecError, StorageError
from plugin_core.runs.dataset_fingerprint import arrow_dataset, has_schema
from plugin_core.runs.directory import RunDir
from plugin_core.runs.lineage import check_checkpoint, check_framework
from plugin_core.runs.output_folder import check_output
from plugin_core.specs import BatchInferSpec, DatasetConfig, StepSpec, TuneSpec
from plugin_core.specs.functions import check_reference
from plugin_core.specs.parts import dataset_paths, needed_columns, needed_rows, spec_datasets, spec_functions, too_few_rows
from plugin_core.specs.results import CheckpointRef
from plugin_core.storage.location import Location


def check_functions_and_data(spec: StepSpec, here: bool) -> None:
    """Raise SpecError where a step names a function, a dataset or a column that is not there, a checkpoint of another
    framework, or an output folder that is not its own.

    `here`: the step runs on this machine, in this environment; else only what can be told from here is looked at.
    """
    _, references = spec_functions(spec)
    for name, reference in references.items():
        check_reference(name, reference, must_exist=here)
    for name, dataset in spec_datasets(spec).items():
        check_dataset(name, dataset, needed_columns(spec, name), needed_rows(spec, name, dataset), here=here)
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
    for path in dataset_paths(config):
        location = Location.of(path, f"{field}.path")
        if location.is_local and not here:
            return
        if not location.exists():
            raise SpecError(f"{field}.path: got {path!r}, where there is nothing; expected an existing file or folder")
        wanted = {f"{field}.columns": config.columns or [], **needed}
        # the other formats have columns of Ray's naming, which show when they are read
        if has_schema(config) and (any(wanted.values()) or rows):
            found = arrow_dataset(location, config.guessed_format, f"{field}.path")
            names = found.schema.names
            for source, columns in wanted.items():
                for missing in (name for name in columns if name not in names):
                    raise SpecError(f"{source}: got {missing!r}, which {path} has not; expected {', '.join(names)}")
            there += found.head(rows).num_rows if there < rows else 0
    if has_schema(config) and config.split is None and there < rows:
        raise too_few_rows(field, config, there, rows)
