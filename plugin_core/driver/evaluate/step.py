"""Evaluate: computes a checkpoint's metrics on a dataset; checks them against thresholds and another checkpoint."""

from __future__ import annotations

import functools
import logging
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from plugin_core.driver import datasets
from plugin_core.driver.evaluate.plots import plots
from plugin_core.driver.evaluate.predictor import Predict, pool
from plugin_core.driver.evaluate.tallies import Both, tally_maker
from plugin_core.driver.evaluate.thresholds import verdict
from plugin_core.driver.resources import reserved
from plugin_core.driver.rows import rows_in_journal
from plugin_core.errors import SpecError, UserCodeError
from plugin_core.runs.dataset_fingerprint import dataset_fingerprint
from plugin_core.runs.directory import RunDir
from plugin_core.runs.lineage import check_framework
from plugin_core.specs import EvaluateSpec
from plugin_core.specs.functions import call_with
from plugin_core.specs.json_values import json_safe
from plugin_core.specs.results import CheckpointRef, EvaluationRef, EvaluationResult

if TYPE_CHECKING:
    from plugin_core.runs.context import StepContext

#: The most values of a column that metrics are sliced by.
SLICES = 1000
#: A slice: column and value; ("", "") stands for all rows.
Slice = tuple[str, str]
ALL: Slice = ("", "")
#: The phase that evaluates the checkpoint which this one is compared to.
OTHER = "evaluating the checkpoint to compare with"

logger = logging.getLogger(__name__)


def run(context: StepContext) -> EvaluationResult:
    spec = context.spec
    assert isinstance(spec, EvaluateSpec)
    check_framework(spec)
    fingerprint = dataset_fingerprint(spec.dataset) if spec.dataset else None
    context.set_phase("evaluating")
    evaluate = _by_function if spec.evaluate is not None else _by_predictor
    metrics, slices, drawn = evaluate(context, spec, spec.checkpoint)
    compared = _compared_metrics(context, spec, evaluate, fingerprint)
    failed = verdict(spec, metrics, compared)
    places = {}
    for name, png in drawn.items():
        place = context.rundir.location.child(f"{name}.png")
        place.write(png)
        places[name] = place.uri
    return EvaluationResult(
        run=context.run,
        metrics=metrics,
        passed=not failed,
        failed=failed,
        checkpoint=spec.checkpoint,
        compared_to=spec.compare_to.uri if spec.compare_to else None,
        compared_metrics=compared or {},
        slices=slices,
        plots=places,
        dataset=fingerprint,
    )


_Evaluated = tuple[dict[str, Any], dict[str, dict[str, dict[str, Any]]], dict[str, bytes]]


def _compared_metrics(
    context: StepContext, spec: EvaluateSpec, evaluate: Callable[..., _Evaluated], fingerprint: str | None
) -> dict[str, Any] | None:
    """Return the metrics to compare to: the other checkpoint's on the same data, or those of an earlier evaluation."""
    other = spec.compare_to
    if isinstance(other, CheckpointRef):
        context.set_phase(OTHER)
        return evaluate(context, spec, other)[0]
    if not isinstance(other, EvaluationRef):
        return None
    if None not in (other.dataset, fingerprint) and other.dataset != fingerprint:
        logger.warning("compare_to: %s was evaluated on different data; compare to its checkpoint instead", other.uri)
    if all(name in other.metrics for name in spec.must_beat):
        return other.metrics
    whole = RunDir.at(other.uri).result()  # a reference omits what does not fit
    return whole.metrics if whole is not None else other.metrics


def _by_function(context: StepContext, spec: EvaluateSpec, checkpoint: CheckpointRef) -> _Evaluated:
    import ray

    function, config = context.function("evaluate"), spec.config
    dataset, found = _dataset(context, spec) if spec.dataset else None, checkpoint.to_ray()

    def evaluate() -> Any:
        return json_safe(call_with(function, found, dataset, config))

    # a separate Ray task, so that it runs where its CPUs and GPUs are; the driver has none
    with reserved({"CPU": spec.num_cpus, "GPU": spec.num_gpus}, spec.limits.scheduling_timeout_s) as strategy:
        task = ray.remote(num_cpus=spec.num_cpus, num_gpus=spec.num_gpus, scheduling_strategy=strategy)(evaluate)
        metrics = ray.get(task.remote())
    if not isinstance(metrics, dict):
        raise UserCodeError(f"evaluate: returned {type(metrics).__name__}; expected a dict of metrics")
    return metrics, {}, {}


def _by_predictor(context: StepContext, spec: EvaluateSpec, checkpoint: CheckpointRef) -> _Evaluated:
    from plugin_core.ray_internals.data_progress import Pace

    maker = tally_maker(spec, context.function("torchmetrics") if spec.torchmetrics else None)
    arguments = (context.function("predictor"), checkpoint, spec.config, maker, _columns(spec))
    told = rows_in_journal(context, "evaluating" if checkpoint is spec.checkpoint else OTHER)
    with pool(spec, context.room) as options, told as tell:
        counted = _dataset(context, spec).map_batches(PredictAndTally, fn_constructor_args=arguments, **options)
        tallies: dict[Slice, Both] = {}
        done, pace = 0, Pace()
        for row in counted.iter_rows():
            done += int(row["rows"])
            if pace.is_due():
                tell(done)
            for key, tally in pickle.loads(row["tallies"]).items():
                if key in tallies:
                    tallies[key].merge(tally)
                else:
                    tallies[key] = tally
        tell(done)
    if ALL not in tallies:
        raise SpecError("dataset: got no rows; expected at least one")
    _check_slices(tallies)
    slices: dict[str, dict[str, dict[str, Any]]] = {}
    for (column, value), tally in sorted(tallies.items()):
        if column:
            slices.setdefault(column, {})[value] = json_safe(tally.compute())
    return json_safe(tallies[ALL].compute()), slices, plots(tallies[ALL]) if spec.plots else {}


def _dataset(context: StepContext, spec: EvaluateSpec) -> Any:
    assert spec.dataset is not None
    function = functools.partial(context.function, "dataset.function")
    return datasets.load(spec.dataset, function, for_pool=spec.predictor is not None)


def _columns(spec: EvaluateSpec) -> dict[str, Any]:
    return {
        "label": spec.label_column,
        "prediction": spec.prediction_column,
        "score": spec.score_column,
        "slices": spec.slices,
    }


def _check_slices(tallies: dict[Slice, Both]) -> None:
    for column in {column for column, _ in tallies if column}:
        values = sum(name == column for name, _ in tallies)
        if values > SLICES:
            raise SpecError(f"slices: got {column!r} with {values} values; expected at most {SLICES}")


class PredictAndTally:
    """An actor that predicts a batch and returns its tallies, and how many rows it had."""

    def __init__(
        self,
        predictor: Callable[..., Any],
        checkpoint: CheckpointRef,
        config: dict[str, Any],
        maker: Callable[[], Both],
        columns: dict[str, Any],
    ):
        self._predict = Predict(predictor, checkpoint, config, same_rows=True)
        self._maker = maker
        self._columns = columns

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        import numpy as np

        predicted = {**batch, **self._predict(batch)}
        labels = self._column(batch, "label")
        predictions = self._column(predicted, "prediction")
        scores = self._column(predicted, "score") if self._columns["score"] else None
        everything = np.ones(len(labels), dtype=bool)
        parts: dict[Slice, Any] = {ALL: everything}
        for column in self._columns["slices"]:
            if column not in batch:
                raise SpecError(f"slices: got {column!r}, not found in the dataset; expected one of {', '.join(batch)}")
            values = np.asarray(batch[column]).astype(str)
            parts |= {(column, str(value)): values == value for value in np.unique(values)}
        tallies = {}
        for key, rows in parts.items():
            tallies[key] = self._maker()
            tallies[key].update(labels[rows], predictions[rows], None if scores is None else scores[rows])
        return {"tallies": [pickle.dumps(tallies)], "rows": [len(labels)]}

    def _column(self, batch: dict[str, Any], role: str) -> Any:
        import numpy as np

        name = self._columns[role]
        if name not in batch:
            where = "in the dataset" if role == "label" else "in the predictor's output"
            raise SpecError(f"{role}_column: got {name!r}, not found {where}; expected one of {', '.join(batch)}")
        values = batch[name]
        nested = len(values) > 0 and isinstance(values[0], (list, np.ndarray))
        return np.stack(list(values)) if nested else np.asarray(values)
