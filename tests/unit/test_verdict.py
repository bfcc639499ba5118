"""The verdict on an evaluation: bounds, comparisons, and missing metrics."""

from typing import Any

import numpy as np
import pytest

from plugin_core import EvaluateSpec
from plugin_core.driver.evaluate.tallies import ClassificationTally, RegressionTally
from plugin_core.driver.evaluate.thresholds import verdict
from plugin_core.errors import SpecError
from plugin_core.specs.evaluate import SCORE_METRICS, TASK_METRICS


def spec(**fields: Any) -> EvaluateSpec:
    return EvaluateSpec(evaluate="a:b", checkpoint="/x", **fields)


@pytest.mark.parametrize(
    ("value", "bound", "failed"),
    [
        (0.9, {"min": 0.9}, None),
        (0.9, {"max": 0.9}, None),
        (0.89, {"min": 0.9}, "0.89 < min 0.9 (by 0.01)"),
        (5, {"max": 3}, "5 > max 3 (by 2)"),
        (None, {"min": 0}, "None is not a number"),
        ("good", {"min": 0}, "'good' is not a number"),
        (True, {"min": 0}, "True is not a number"),
    ],
)
def test_a_bound_is_inclusive_and_reports_by_how_much_it_is_broken(
    value: Any, bound: dict[str, float], failed: str | None
) -> None:
    found = verdict(spec(thresholds={"m": bound}), {"m": value}, None)
    assert found == ({"m": failed} if failed else {})


@pytest.mark.parametrize(
    ("mine", "other", "comparison", "failed"),
    [
        (0.9, 0.9, {"mode": "max"}, None),
        (0.89, 0.9, {"mode": "max", "tolerance": 0.02}, None),
        (0.87, 0.9, {"mode": "max", "tolerance": 0.02}, "0.87 < the other's 0.9 (by 0.03 worse; tolerance 0.02)"),
        (0.905, 0.9, {"mode": "max", "tolerance": -0.01}, "0.905 > the other's 0.9 (by 0.005 better; tolerance -0.01)"),
        (2.0, 3.0, {"mode": "min"}, None),
        (3.5, 3.0, {"mode": "min"}, "3.5 > the other's 3 (by 0.5 worse; tolerance 0)"),
        (None, 0.5, {"mode": "max"}, "None is not a number"),
        (0.5, None, {"mode": "max"}, None),
    ],
)
def test_beating_another_checkpoint_is_a_matter_of_mode_and_tolerance(
    mine: Any, other: Any, comparison: dict[str, Any], failed: str | None
) -> None:
    judged = spec(must_beat={"m": comparison}, compare_to="/champion")
    assert verdict(judged, {"m": mine}, {"m": other}) == ({"m": failed} if failed else {})


def test_the_direction_of_a_built_in_metric_is_known() -> None:
    judged = spec(must_beat=["accuracy", "log_loss"], compare_to="/champion")
    better, worse = {"accuracy": 0.9, "log_loss": 0.2}, {"accuracy": 0.8, "log_loss": 0.4}
    assert verdict(judged, better, worse) == {}
    assert set(verdict(judged, worse, better)) == {"accuracy", "log_loss"}


def test_a_failed_threshold_and_a_failed_comparison_are_both_reported() -> None:
    judged = spec(thresholds={"accuracy": {"min": 0.95}}, must_beat=["accuracy"], compare_to="/champion")
    failed = verdict(judged, {"accuracy": 0.9}, {"accuracy": 0.92})["accuracy"]
    assert "min 0.95" in failed
    assert "the other's" in failed


@pytest.mark.parametrize(
    ("fields", "other", "words"),
    [
        (
            {"thresholds": {"acuracy": {"min": 0.9}}},
            None,
            "thresholds: got 'acuracy', which the evaluation does not return; expected one of accuracy, rows"
            " (did you mean accuracy?)",
        ),
        (
            {"must_beat": {"auc": {"mode": "max"}}, "compare_to": "/c"},
            {"auc": 1},
            "must_beat: got 'auc', which the evaluation does not return",
        ),
        ({"must_beat": ["accuracy"], "compare_to": "/c"}, {"rows": 1}, "compare_to: got 'accuracy', which the"),
    ],
)
def test_an_unknown_metric_is_reported_with_the_closest_match(
    fields: dict[str, Any], other: dict[str, Any] | None, words: str
) -> None:
    with pytest.raises(SpecError) as caught:
        verdict(spec(**fields), {"accuracy": 0.9, "rows": 3}, other)
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"evaluate": None}, "evaluate: got neither or both of evaluate and predictor; expected exactly one"),
        ({"predictor": "a:b"}, "evaluate: got neither or both of evaluate and predictor; expected exactly one"),
        (
            {"evaluate": None, "predictor": "a:b"},
            "task: missing; predictor needs task 'classification' or 'regression'",
        ),
        ({"evaluate": None, "predictor": "a:b", "task": "regression"}, "dataset: missing; predictor needs one"),
        (
            {"slices": ["region"]},
            "slices: got it together with evaluate, which computes everything; only valid with predictor",
        ),
        ({"must_beat": ["accuracy"]}, "compare_to: missing; must_beat needs"),
        ({"compare_to": "/c"}, "must_beat: missing; compare_to needs"),
        ({"must_beat": ["auc"], "compare_to": "/c"}, "must_beat.auc.mode: missing; expected 'max' (higher is better)"),
        ({"thresholds": {"accuracy": {"minn": 1}}}, "did you mean min?"),
    ],
)
def test_an_invalid_evaluation_spec_is_rejected_at_construction(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError) as caught:
        EvaluateSpec(**{"checkpoint": "/x", "evaluate": "a:b", **fields})
    assert words in caught.value.message


BUILT_IN = {"evaluate": None, "predictor": "a:b", "task": "classification", "dataset": "/x.parquet"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"thresholds": {"f2": {"min": 0.6}}},
            "thresholds.f2: got a metric that task 'classification' does not compute; expected one of rows, accuracy,"
            " balanced_accuracy, mcc, precision, recall, f1, f1_weighted (did you mean f1?)",
        ),
        (
            {"must_beat": ["acuracy"], "compare_to": "/c"},
            "must_beat.acuracy: got a metric that task 'classification' does not compute",
        ),
        ({"thresholds": {"roc_auc": {"min": 0.6}}}, "score_column: missing; thresholds.roc_auc is computed from it"),
        ({"task": "regression", "thresholds": {"f1": {"min": 0.6}}}, "expected one of rows, mae, mse, rmse, r2, max_error"),
    ],
)
def test_a_gate_on_a_metric_that_the_task_does_not_compute_is_refused_before_anything_runs(
    fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(SpecError) as caught:
        EvaluateSpec(**{"checkpoint": "/x", **BUILT_IN, **fields})
    assert words in caught.value.message
    assert "Evaluation" not in caught.value.message


@pytest.mark.parametrize("fields", [{"score_column": "score"}, {"torchmetrics": "a:metrics"}])
def test_a_gate_on_a_metric_that_may_be_computed_is_accepted(fields: dict[str, Any]) -> None:
    EvaluateSpec(checkpoint="/x", **BUILT_IN, thresholds={"roc_auc": {"min": 0.6}}, **fields)


def test_the_metrics_that_a_task_is_known_for_are_those_it_computes() -> None:
    labels, scores = np.array([0, 1, 1]), np.array([0.2, 0.7, 0.4])
    for task, tally in (("classification", ClassificationTally()), ("regression", RegressionTally())):
        tally.update(labels, labels, scores)
        names = {*TASK_METRICS[task], *(SCORE_METRICS if task == "classification" else ())}
        assert set(tally.compute()) == names
