"""Batch inference: runs a predictor over a Ray Dataset in an actor pool → files, commit marker (`output_folder`)."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from plugin_core.driver import datasets
from plugin_core.driver.evaluate.predictor import Predict, pool
from plugin_core.driver.fenced_filesystem import fenced_filesystem
from plugin_core.driver.rows import rows_in_journal
from plugin_core.runs import output_folder
from plugin_core.runs.fence import Fence
from plugin_core.runs.lineage import check_framework
from plugin_core.specs import BatchInferSpec
from plugin_core.specs.results import BatchInferResult
from plugin_core.storage.location import Location

if TYPE_CHECKING:
    from plugin_core.runs.context import StepContext


def run(context: StepContext) -> BatchInferResult:
    spec = context.spec
    assert isinstance(spec, BatchInferSpec)
    check_framework(spec)
    root = Location.of(spec.output_path) if spec.output_path else context.rundir.location.child("predictions")
    output_folder.claim_output(root, context.rundir.location)
    fence = Fence(context.rundir.uri, context.attempt)
    if done := output_folder.committed(root, fence):
        output_folder.publish(root, done, fence)
        return _result(context, root.child(done["folder"]), done["rows"])
    folder = output_folder.begin(root, context.attempt, spec.key_column is not None, context.rundir.generation)
    if spec.key_column is not None:
        output_folder.drop_unrecorded(folder, _written_rows(context), fence)
    filesystem = fenced_filesystem(context.rundir.uri, context.attempt, folder.uri)
    with _configured(context, spec):
        written = _predict(context, spec, folder, filesystem)
    context.set_phase("committing")
    rows = output_folder.commit(root, folder, spec.output_format, spec.checkpoint.uri, written, fence)
    return _result(context, folder, rows)


def _predict(context: StepContext, spec: BatchInferSpec, folder: Location, filesystem: Any) -> int:
    from plugin_core.ray_internals import data_progress

    arguments = (context.function("predictor"), spec.checkpoint, spec.config, spec.preserve_rows)
    dataset = datasets.load(spec.dataset, functools.partial(context.function, "dataset.function"), for_pool=True)
    context.set_phase("predicting")
    told = rows_in_journal(context, "predicting")
    with pool(spec, context.room) as options, told as tell, data_progress.rows_told(Predict.__name__, tell):
        predicted = dataset.map_batches(Predict, fn_constructor_args=arguments, **options)
        if spec.output_columns is not None:
            predicted = predicted.select_columns(spec.output_columns)
        return _write(predicted, spec, folder.path, filesystem)


def _result(context: StepContext, folder: Location, rows: int) -> BatchInferResult:
    assert isinstance(context.spec, BatchInferSpec)
    return BatchInferResult(
        run=context.run, output=folder.uri, format=context.spec.output_format, rows=rows, metrics={"rows": rows}
    )


def _written_rows(context: StepContext) -> Location:
    """Ray's records of the rows that are written, with a key column."""
    return context.rundir.step.child("rows")


@contextmanager
def _configured(context: StepContext, spec: BatchInferSpec) -> Iterator[None]:
    """Sets what Ray Data's settings of this process say about this prediction."""
    import ray.data
    from ray.data.checkpoint import CheckpointConfig

    from plugin_core.ray_internals import data_progress

    data_progress.begin()
    settings = ray.data.DataContext.get_current()
    settings.execution_options.preserve_order = spec.preserve_order
    keys = None
    if spec.key_column is not None:
        # Ray's own checkpoint of written rows, committed in two phases with each output file
        done = _written_rows(context)
        done.make_dir()
        keys = CheckpointConfig(
            spec.key_column,
            done.path,
            override_filesystem=fenced_filesystem(context.rundir.uri, context.attempt, done.uri),
            delete_checkpoint_on_success=False,
        )
    before, settings.checkpoint_config = settings.checkpoint_config, keys
    try:
        yield
    finally:
        # Ray leaves rows with these keys out of whatever this process writes (see `execute`)
        settings.checkpoint_config = before


def _write(dataset: Any, spec: BatchInferSpec, path: str, filesystem: Any) -> int:
    """Write the files; return the number of rows that the write tasks report."""
    match spec.output_format:
        case "parquet":
            dataset.write_parquet(path, filesystem=filesystem, partition_cols=spec.partition_by or None)
        case "csv":
            dataset.write_csv(path, filesystem=filesystem)
        case _:
            dataset.write_json(path, filesystem=filesystem)
    # Ray passes it only to its own sinks (ray 2.60)
    return sum(int(task["num_rows"]) for task in dataset._write_ds.take_all())
