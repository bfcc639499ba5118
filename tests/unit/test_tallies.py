"""The built-in metrics: counted in parts and combined, they equal those of scikit-learn over all rows at once."""

import pickle
from typing import Any

import numpy as np
import pytest
from sklearn import metrics

from plugin_core import EvaluateSpec
from plugin_core.driver.evaluate.plots import plots
from plugin_core.driver.evaluate.tallies import Both, tally_maker
from plugin_core.errors import SpecError, UserCodeError


def spec(**fields: Any) -> EvaluateSpec:
    return EvaluateSpec(predictor="a:b", checkpoint="/x", dataset="/data.parquet", **fields)


def counted(maker: Any, labels: Any, predictions: Any, scores: Any, parts: int) -> Both:
    """Counted in `parts` very unequal parts, each of which travels as bytes."""
    whole = None
    cuts = np.unique(np.geomspace(1, len(labels), parts).astype(int))
    for rows in np.split(np.arange(len(labels)), cuts[:-1]):
        if not len(rows):
            continue
        tally = maker()
        tally.update(labels[rows], predictions[rows], None if scores is None else scores[rows])
        tally = pickle.loads(pickle.dumps(tally))
        if whole is None:
            whole = tally
        else:
            whole.merge(tally)
    assert whole is not None
    return whole


@pytest.mark.parametrize("names", [None, np.array(["ant", "bee", "cat", "dog"])], ids=["numbers", "strings"])
@pytest.mark.parametrize("parts", [1, 7])
def test_classification_in_parts_is_exact(parts: int, names: Any) -> None:
    random = np.random.default_rng(1)
    labels = random.choice(4, 501, p=[0.6, 0.3, 0.08, 0.02])
    predictions = np.where(random.random(501) < 0.7, labels, random.integers(0, 4, 501))
    if names is not None:
        labels, predictions = names[labels], names[predictions]
    found = counted(tally_maker(spec(task="classification"), None), labels, predictions, None, parts).compute()
    macro: dict[str, Any] = {"average": "macro", "zero_division": 0}
    assert found == pytest.approx(
        {
            "rows": 501,
            "accuracy": metrics.accuracy_score(labels, predictions),
            "balanced_accuracy": metrics.balanced_accuracy_score(labels, predictions),
            "mcc": metrics.matthews_corrcoef(labels, predictions),
            "precision": metrics.precision_score(labels, predictions, **macro),
            "recall": metrics.recall_score(labels, predictions, **macro),
            "f1": metrics.f1_score(labels, predictions, **macro),
            "f1_weighted": metrics.f1_score(labels, predictions, average="weighted"),
        }
    )


def test_scores_add_the_metrics_that_need_them() -> None:
    random = np.random.default_rng(2)
    labels = random.integers(0, 2, 300)
    scores = np.clip(0.3 * labels + 0.7 * random.random(300), 0, 1)
    found = counted(
        tally_maker(spec(task="classification", score_column="p"), None), labels, (scores > 0.5) * 1, scores, 5
    ).compute()
    assert found["roc_auc"] == pytest.approx(metrics.roc_auc_score(labels, scores))
    assert found["log_loss"] == pytest.approx(metrics.log_loss(labels, scores))
    assert found["brier"] == pytest.approx(metrics.brier_score_loss(labels, scores))
    assert found["average_precision"] == pytest.approx(metrics.average_precision_score(labels, scores))

    classes = random.integers(0, 3, 300)
    many = random.random((300, 3)) + np.eye(3)[classes]
    many /= many.sum(axis=1, keepdims=True)
    found = counted(
        tally_maker(spec(task="classification", score_column="p"), None), classes, many.argmax(1), many, 5
    ).compute()
    assert found["roc_auc"] == pytest.approx(metrics.roc_auc_score(classes, many, multi_class="ovr"))
    assert found["log_loss"] == pytest.approx(metrics.log_loss(classes, many))


def test_a_metric_that_needs_two_classes_is_none_for_one() -> None:
    tally = tally_maker(spec(task="classification", score_column="p"), None)()
    tally.update(np.array([1, 1]), np.array([1, 0]), np.array([0.9, 0.2]))
    found = tally.compute()
    assert found["roc_auc"] is None
    assert found["accuracy"] == 0.5


@pytest.mark.parametrize("missing", [np.nan, None])
def test_a_missing_class_is_refused_where_the_metrics_would_be_those_of_the_other_rows(missing: Any) -> None:
    right, wrong = np.array([1.0, 0.0, 1.0], dtype=object), np.array([1.0, missing, 1.0], dtype=object)
    tally = tally_maker(spec(task="classification"), None)()
    with pytest.raises(UserCodeError, match="predictor: predicted NaN or None for 1 of 3 rows; expected a class"):
        tally.update(right, wrong, None)
    with pytest.raises(SpecError, match="label_column: got rows without a value"):
        tally.update(wrong, right, None)


@pytest.mark.parametrize("parts", [1, 7])
def test_regression_in_parts_is_exact_even_far_from_zero(parts: int) -> None:
    random = np.random.default_rng(3)
    labels = 1e9 + random.normal(size=700)
    predictions = labels + 0.1 * random.normal(size=700)
    found = counted(tally_maker(spec(task="regression"), None), labels, predictions, None, parts).compute()
    assert found == pytest.approx(
        {
            "rows": 700,
            "mae": metrics.mean_absolute_error(labels, predictions),
            "mse": metrics.mean_squared_error(labels, predictions),
            "rmse": metrics.root_mean_squared_error(labels, predictions),
            "r2": metrics.r2_score(labels, predictions),
            "max_error": metrics.max_error(labels, predictions),
        }
    )


def test_torchmetrics_in_parts_are_exact_and_appear_with_the_built_in_ones() -> None:
    import torch
    from torchmetrics import MetricCollection
    from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC, MulticlassF1Score

    random = np.random.default_rng(4)
    labels = random.integers(0, 3, 400)
    scores = (random.random((400, 3)) + np.eye(3)[labels]).astype(np.float32)

    def make() -> Any:
        return MetricCollection(
            {
                "top2": MulticlassAccuracy(3, top_k=2),
                "f1_class": MulticlassF1Score(3, average=None),
                "auc": MulticlassAUROC(3),
            }
        )

    found = counted(
        tally_maker(spec(task="classification", score_column="p"), make), labels, scores.argmax(1), scores, 6
    ).tallies[1].compute()  # fmt: skip
    whole = make()
    whole.update(torch.as_tensor(scores), torch.as_tensor(labels))
    expected = whole.compute()
    assert found["rows"] == 400
    assert float(found["top2"]) == pytest.approx(float(expected["top2"]))
    assert float(found["auc"]) == pytest.approx(float(expected["auc"]))
    assert found["f1_class"].tolist() == pytest.approx(expected["f1_class"].tolist())


@pytest.mark.parametrize(("task", "name"), [("classification", "confusion_matrix"), ("regression", "residuals")])
def test_an_evaluation_has_a_plot(task: Any, name: str) -> None:
    tally = tally_maker(spec(task=task), None)()
    tally.update(np.array([1.0, 2.0, 2.0]), np.array([1.0, 2.0, 1.0]), None)
    drawn = plots(tally)
    assert list(drawn) == [name]
    assert drawn[name].startswith(b"\x89PNG")
