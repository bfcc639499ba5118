"""The spec of a batch inference."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from plugin_core.specs.common import DatasetConfig, Framework, Function, Place
from plugin_core.specs.fields import Amount, Count, Flag, Name, Names, Plain, Processes
from plugin_core.specs.results import CheckpointRef
from plugin_core.specs.step import Bundle, StepSpec, in_sum, low_and_high, pool_bundles


class BatchInferSpec(StepSpec):
    """Predictions over a dataset of any size, written as files.

    `predictor(checkpoint, **config)` is constructed once per actor; its `__call__(batch)` maps a dict of arrays to another,
    whose columns (or only `output_columns`) are written. A preprocessor saved with the checkpoint transforms each batch
    first. `concurrency`: the number of actors, or [min, max] of an autoscaling pool; `batch_size` in rows.

    `output_path` must be empty or this run's own. `partition_by`: columns that partition parquet files into folders.
    `preserve_order`: files and rows in dataset order. `preserve_rows`: the predictor must return as many rows as it gets.
    `key_column`: a column with a unique key per row, which lets an attempt continue where the last one was killed; without
    it, an attempt starts over. `framework`: the framework that the predictor expects of the checkpoint.
    """

    kind: Literal["batch_infer"] = "batch_infer"
    predictor: Function
    checkpoint: CheckpointRef
    framework: Framework | None = None
    dataset: DatasetConfig
    output_path: Place | None = Field(None, description="default: predictions/ in the run directory")
    output_format: Literal["parquet", "csv", "json"] = "parquet"
    output_columns: Names | None = None
    partition_by: Names = []
    preserve_order: Flag = False
    preserve_rows: Flag = False
    key_column: Name | None = None
    config: Plain = {}
    batch_size: Count = 1024
    concurrency: Processes = 1
    num_cpus: Amount = 1.0
    num_gpus: Amount = 0.0

    def bundles(self) -> list[Bundle]:
        return pool_bundles(low_and_high(self.concurrency)[0], self.num_cpus, self.num_gpus)

    def at_most(self) -> dict[str, float]:
        return in_sum(pool_bundles(low_and_high(self.concurrency)[1], self.num_cpus, self.num_gpus))

    def needed_columns(self, field: str) -> dict[str, list[str]]:
        return {"key_column": [self.key_column]} if self.key_column is not None else {}

    @model_validator(mode="after")
    def _output(self) -> Self:
        if self.partition_by and self.output_format != "parquet":
            raise ValueError(f"partition_by: got it with output_format {self.output_format!r}; only valid with parquet")
        columns = self.output_columns
        for name in [*self.partition_by, *([self.key_column] if self.key_column else [])]:
            if columns is not None and name not in columns:
                field = "key_column" if name == self.key_column else "partition_by"
                raise ValueError(f"{field}: got {name!r}; expected one of output_columns ({', '.join(columns)})")
        return self
