"""A kind of step: it counts the rows of a dataset that a function of the user's keeps."""

from typing import Literal

from plugin_core.driver import datasets
from plugin_core.runs.context import StepContext
from plugin_core.specs.common import DatasetConfig
from plugin_core.specs.function_field import Function
from plugin_core.specs.results import StepResult
from plugin_core.specs.step import Bundle, StepSpec
from plugin_core.specs.step_kinds import StepKind, declare


class RowCountSpec(StepSpec):
    kind: Literal["row_count"] = "row_count"
    dataset: DatasetConfig
    keep: Function

    def bundles(self) -> list[Bundle]:
        return [(1, {"CPU": 1.0})]

    def needed_rows(self, dataset: DatasetConfig) -> int:
        return 1


class RowCountResult(StepResult):
    kind: Literal["row_count"] = "row_count"


def run(context: StepContext) -> RowCountResult:
    spec = context.spec
    assert isinstance(spec, RowCountSpec)
    rows = datasets.load(spec.dataset, lambda: context.function("dataset.function"))
    return RowCountResult(run=context.run, metrics={"rows": rows.filter(context.function("keep")).count()})


declare(StepKind(RowCountSpec, RowCountResult, "acme_raytrain.row_count:run"))
