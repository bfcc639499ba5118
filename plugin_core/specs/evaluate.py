"""The spec of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from plugin_core.errors.shown import did_you_mean, shown
from plugin_core.specs.base import Model
from plugin_core.specs.common import DatasetConfig, Framework
from plugin_core.specs.fields import Amount, Count, Flag, Name, Names, Number, Plain, Processes
from plugin_core.specs.function_arguments import check_arguments, given
from plugin_core.specs.function_field import Function
from plugin_core.specs.json_values import also
from plugin_core.specs.results import CheckpointRef, EvaluationRef
from plugin_core.specs.step import READING, Bundle, StepSpec, in_sum, low_and_high, pool_bundles


class Threshold(Model):
    """Inclusive bounds on a metric, one or both."""

    min: Number | None = Field(None, description="at least this")
    max: Number | None = Field(None, description="at most this")

    @model_validator(mode="after")
    def _can_fail(self) -> Self:
        if self.min is None and self.max is None:
            raise ValueError("min: missing; a threshold needs min or max")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min: got {self.min:g}; expected at most max, {self.max:g}")
        return self


class Comparison(Model):
    """A metric must be at least as good as another checkpoint's, within `tolerance`."""

    mode: Literal["max", "min"] | None = Field(
        None, description="whether higher or lower is better; known for built-in metrics"
    )
    tolerance: Number = Field(
        0.0, description="how much worse is good enough, in the metric's unit; negative: how much better it must be"
    )


class Evaluation(StepSpec):
    """An evaluation of any checkpoint: an EvaluateSpec without its checkpoints.

    Computes metrics of a checkpoint on a dataset and decides whether they are good enough, in one of two ways:

    * `evaluate(checkpoint, dataset, config)` (or a prefix of these arguments) returns a dict of metrics. `checkpoint` is a
      `ray.train.Checkpoint`, `dataset` a `ray.data.Dataset` or None. It runs in one process with `num_cpus` and `num_gpus`.
    * `predictor` (as in BatchInferSpec) with `task` or `torchmetrics`: `concurrency` actors predict, each with `num_cpus`
      and `num_gpus`, and their counts are combined exactly. `task` computes the metrics listed in `docs/evaluate.md`;
      `torchmetrics()` returns a `torchmetrics.Metric` or `MetricCollection`. Both compare `prediction_column`, which the
      predictor adds, to `label_column`.

    `passed` is false in the result if a metric is outside its threshold or misses its `must_beat` comparison.
    """

    evaluate: Annotated[Function, given("checkpoint", "dataset", "config")] | None = Field(
        None, description="your function `(checkpoint, dataset, config)` that returns metrics; give this or `predictor`"
    )
    predictor: Function | None = Field(
        None, description="a class as in a batch inference, whose predictions `task` or `torchmetrics` judge"
    )
    task: Literal["classification", "regression"] | None = Field(None, description="the built-in metrics")
    torchmetrics: Function | None = Field(None, description="returns a `torchmetrics.Metric` or `MetricCollection`")
    framework: Framework | None = Field(None, description="refuse a checkpoint of another framework")
    dataset: DatasetConfig | None = Field(None, description="what is evaluated on")
    config: Plain = Field({}, description="the third argument of `evaluate`, or keyword arguments of `predictor`")
    label_column: Name = Field("label", description="the truth")
    prediction_column: Name = Field("prediction", description="what the predictor adds")
    score_column: Name | None = Field(None, description="the probability of class 1, or one for each class")
    slices: Names = Field([], description="columns by whose values the metrics are broken down")
    plots: Flag = Field(True, description="draw the confusion matrix or the residuals")
    thresholds: dict[Name, Threshold] = Field({}, description="metric → bounds; a broken one sets `passed` to false")
    must_beat: dict[Name, Comparison] = Field(
        {},
        json_schema_extra=also({"type": "array"}),
        description="metrics that must be as good as another checkpoint's; a list of names will do",
    )
    batch_size: Count = Field(1024, description="rows in a batch")
    concurrency: Processes = Field(1, description="actors that predict")
    num_cpus: Amount = Field(1.0, description="CPUs of the process or of each actor")
    num_gpus: Amount = Field(0.0, description="GPUs of the process or of each actor")

    def bundles(self) -> list[Bundle]:
        if self.evaluate is None:
            return pool_bundles(low_and_high(self.concurrency)[0], self.num_cpus, self.num_gpus)
        own = (1, {"CPU": self.num_cpus, "GPU": self.num_gpus})
        return [own, READING] if self.dataset else [own]

    def at_most(self) -> dict[str, float]:
        if self.evaluate is not None:
            return self.need()
        return in_sum(pool_bundles(low_and_high(self.concurrency)[1], self.num_cpus, self.num_gpus))

    def needed_columns(self, field: str) -> dict[str, list[str]]:
        return {"label_column": [self.label_column], "slices": self.slices} if self.predictor is not None else {}

    def needed_rows(self, dataset: DatasetConfig) -> int:
        return 1

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        """`must_beat` may be a list of metrics."""
        if isinstance(value, dict) and isinstance(value.get("must_beat"), (list, tuple)):
            for name in value["must_beat"]:
                if not isinstance(name, str):
                    raise ValueError(f"must_beat: got {shown(name)}; expected a list of metric names")
            return {**value, "must_beat": {name: {} for name in value["must_beat"]}}
        return value

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.evaluate is None) == (self.predictor is None):
            raise ValueError("evaluate: got neither or both of evaluate and predictor; expected exactly one")
        if self.evaluate is not None:
            for name in ("task", "torchmetrics", "score_column", "slices"):
                if getattr(self, name):
                    raise ValueError(
                        f"{name}: got it together with evaluate, which computes everything; only valid with predictor"
                    )
            return self
        check_arguments("config", self.config, self.predictor, "checkpoint")
        if self.task is None and self.torchmetrics is None:
            raise ValueError("task: missing; predictor needs task 'classification' or 'regression', or torchmetrics")
        if self.dataset is None:
            raise ValueError("dataset: missing; predictor needs one")
        return self

    @model_validator(mode="after")
    def _modes(self) -> Self:
        if self.task is not None:
            if self.torchmetrics is None:
                self._check_names(self.task)
            check_gates(self.thresholds, self.must_beat)
        for name, comparison in self.must_beat.items():
            if comparison.mode is None and name not in KNOWN_MODES:
                raise ValueError(f"must_beat.{name}.mode: missing; expected 'max' (higher is better) or 'min'")
        return self

    def _check_names(self, task: str) -> None:
        """Raise ValueError for a gate on a metric the task does not compute; with a function, only the run can tell."""
        names = (*TASK_METRICS[task], *(SCORE_METRICS if task == "classification" and self.score_column else ()))
        for field, gates in (("thresholds", self.thresholds), ("must_beat", self.must_beat)):
            for name in (name for name in gates if name not in names):
                if task == "classification" and name in SCORE_METRICS:
                    raise ValueError(f"score_column: missing; {field}.{name} is computed from it")
                raise ValueError(
                    f"{field}.{name}: got a metric that task {task!r} does not compute; expected one of"
                    f" {', '.join(names)}{did_you_mean(name, names)}"
                )


class EvaluateSpec(Evaluation):
    """An evaluation of `checkpoint`. A checkpoint in `compare_to` is evaluated on the same data."""

    kind: Literal["evaluate"] = "evaluate"
    checkpoint: CheckpointRef = Field(description="what is judged: a checkpoint, a run, or a result that has one")
    compare_to: EvaluationRef | CheckpointRef | None = Field(
        None, description="another checkpoint, or an earlier evaluation's result, for `must_beat`"
    )

    @model_validator(mode="after")
    def _comparison(self) -> Self:
        if self.must_beat and self.compare_to is None:
            raise ValueError("compare_to: missing; must_beat needs a checkpoint or an evaluation's result to compare to")
        if self.compare_to is not None and not self.must_beat:
            raise ValueError("must_beat: missing; compare_to needs the metrics to compare")
        return self


#: Task → the metrics it computes; `SCORE_METRICS`: those that classification adds with `score_column`.
TASK_METRICS = {
    "classification": ("rows", "accuracy", "balanced_accuracy", "mcc", "precision", "recall", "f1", "f1_weighted"),
    "regression": ("rows", "mae", "mse", "rmse", "r2", "max_error"),
}
SCORE_METRICS = ("log_loss", "brier", "roc_auc", "average_precision")

#: Built-in metric → whether higher or lower is better.
KNOWN_MODES = {
    **dict.fromkeys(["accuracy", "balanced_accuracy", "precision", "recall", "f1", "f1_weighted", "mcc"], "max"),
    **dict.fromkeys(["roc_auc", "average_precision", "r2"], "max"),
    **dict.fromkeys(["log_loss", "brier", "mae", "mse", "rmse", "max_error"], "min"),
}


#: Built-in metric → (minimum, maximum).
RANGES = {
    **dict.fromkeys(["accuracy", "balanced_accuracy", "precision", "recall", "f1", "f1_weighted"], (0.0, 1.0)),
    **dict.fromkeys(["roc_auc", "average_precision", "brier"], (0.0, 1.0)),
    **dict.fromkeys(["log_loss", "mae", "mse", "rmse", "max_error"], (0.0, math.inf)),
    "mcc": (-1.0, 1.0),
    "r2": (-math.inf, 1.0),
}


def check_gates(thresholds: Mapping[str, Threshold], must_beat: Mapping[str, Comparison]) -> None:
    """Raise ValueError if a requirement on a built-in metric is always or never met."""
    for name, bound in thresholds.items():
        least, most = RANGES.get(name, (-math.inf, math.inf))
        if bound.min is not None and not (least < bound.min <= most):
            raise ValueError(f"thresholds.{name}.min: got {bound.min:g}; expected {_within(name)}")
        if bound.max is not None and not (least <= bound.max < most):
            raise ValueError(f"thresholds.{name}.max: got {bound.max:g}; expected {_within(name)}")
    for name, comparison in must_beat.items():
        least, most = RANGES.get(name, (-math.inf, math.inf))
        if abs(comparison.tolerance) >= most - least:
            raise ValueError(f"must_beat.{name}.tolerance: got {comparison.tolerance:g}; expected {_within(name)}")


def _within(name: str) -> str:
    least, most = RANGES[name]
    return f"a value that {name}, which ranges from {least:g} to {most:g}, can both pass and fail"
