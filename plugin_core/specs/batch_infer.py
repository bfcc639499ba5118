"""The spec of a batch inference."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from plugin_core.specs.common import DatasetConfig, Framework, Place
from plugin_core.specs.fields import Amount, Count, Flag, Name, Names, Plain, Processes
from plugin_core.specs.function_arguments import check_arguments
from plugin_core.specs.function_field import Function
from plugin_core.specs.results import CheckpointRef
from plugin_core.specs.step import Bundle, StepSpec, in_sum, low_and_high, pool_bundles


class BatchInferSpec(StepSpec):
    """Predictions over a dataset of any size, written as files.

    `predictor(checkpoint, **config)` is constructed once per actor; its `__call__(batch)` maps a dict of arrays to another,
    whose columns are written. A preprocessor saved with the checkpoint transforms each batch first.
    """

    kind: Literal["batch_infer"] = "batch_infer"
    predictor: Function = Field(
        description="a class: `predictor(checkpoint, **config)` once an actor, then `predictor(batch)` for each batch"
    )
    checkpoint: CheckpointRef = Field(description="the model: a checkpoint, a run, or a result that has one")
    framework: Framework | None = Field(None, description="refuse a checkpoint of another framework")
    dataset: DatasetConfig = Field(description="what is predicted for")
    output_path: Place | None = Field(None, description="an empty folder. None: `predictions/` in the run directory")
    output_format: Literal["parquet", "csv", "json"] = Field("parquet", description="of the files")
    output_columns: Names | None = Field(None, description="write only these; None: all that the predictor returns")
    partition_by: Names = Field([], description="columns that partition parquet files into folders")
    preserve_order: Flag = Field(False, description="files and rows in the dataset's order")
    preserve_rows: Flag = Field(False, description="refuse a predictor that returns more or fewer rows than it got")
    key_column: Name | None = Field(
        None, description="a unique key in each row, with which an attempt goes on where the last one was killed"
    )
    config: Plain = Field({}, description="keyword arguments of `predictor`")
    batch_size: Count = Field(1024, description="rows in a batch")
    concurrency: Processes = Field(1, description="actors that predict; a pair is a pool that grows and shrinks")
    num_cpus: Amount = Field(1.0, description="CPUs of each actor")
    num_gpus: Amount = Field(0.0, description="GPUs of each actor")

    def bundles(self) -> list[Bundle]:
        return pool_bundles(low_and_high(self.concurrency)[0], self.num_cpus, self.num_gpus)

    def at_most(self) -> dict[str, float]:
        return in_sum(pool_bundles(low_and_high(self.concurrency)[1], self.num_cpus, self.num_gpus))

    def needed_columns(self, field: str) -> dict[str, list[str]]:
        return {"key_column": [self.key_column]} if self.key_column is not None else {}

    @model_validator(mode="after")
    def _takes_the_config(self) -> Self:
        check_arguments("config", self.config, self.predictor, "checkpoint")
        return self

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
