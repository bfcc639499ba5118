"""Mergeable tallies of labels and predictions, updated per batch on any worker. Merged, they give exactly the metrics of
one pass over all rows, never a mean of means."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, Self

from plugin_core.errors import SpecError, UserCodeError
from plugin_core.specs.extras import require

if TYPE_CHECKING:
    import numpy as np

    from plugin_core.specs import EvaluateSpec

#: The most points of a residual plot: those with the lowest random numbers, a uniform sample of all rows.
PLOT_POINTS = 5000


class Tally(Protocol):
    """Tally of some rows. `predictions`, `labels`: one value per row; `scores`: one or several probabilities per row, or
    None."""

    def update(self, labels: np.ndarray, predictions: np.ndarray, scores: np.ndarray | None) -> None: ...

    def merge(self, other: Self) -> None: ...

    def compute(self) -> dict[str, Any]: ...


class ClassificationTally:
    """Confusion counts, and the scores if any. The metrics are scikit-learn's, with counts as sample weights; precision,
    recall and f1 are macro averages."""

    def __init__(self) -> None:
        self.counts: Any = None
        self.scores: list[tuple[Any, Any]] = []

    def update(self, labels: np.ndarray, predictions: np.ndarray, scores: np.ndarray | None) -> None:
        import pandas as pd

        # pandas would count neither, and the metrics would be those of the other rows
        if pd.isna(labels).any():
            raise SpecError("label_column: got rows without a value; expected a class in each, or a dataset without them")
        if missing := int(pd.isna(predictions).sum()):
            raise UserCodeError(f"predictor: predicted NaN or None for {missing} of {len(labels)} rows; expected a class")
        self._add(pd.DataFrame({"label": labels, "prediction": predictions}).value_counts())
        if scores is not None:
            self.scores.append((labels, scores))

    def merge(self, other: Self) -> None:
        self._add(other.counts)
        self.scores += other.scores

    def _add(self, counts: Any) -> None:
        self.counts = counts if self.counts is None else self.counts.add(counts, fill_value=0)

    def compute(self) -> dict[str, Any]:
        from sklearn import metrics

        table = self.counts.sort_index().reset_index(name="count")
        truth, guess, weight = table["label"], table["prediction"], table["count"]
        precision, recall, f1, _ = metrics.precision_recall_fscore_support(
            truth, guess, sample_weight=weight, average="macro", zero_division=0
        )
        return {
            "rows": int(weight.sum()),
            "accuracy": metrics.accuracy_score(truth, guess, sample_weight=weight),
            "balanced_accuracy": metrics.recall_score(
                truth, guess, labels=truth.unique(), sample_weight=weight, average="macro", zero_division=0
            ),
            "mcc": metrics.matthews_corrcoef(truth, guess, sample_weight=weight),
            "precision": precision,
            "recall": recall,
            "f1": f1,
            "f1_weighted": metrics.f1_score(truth, guess, sample_weight=weight, average="weighted", zero_division=0),
            **self._of_scores(),
        }

    def _of_scores(self) -> dict[str, Any]:
        """Metrics such as ROC-AUC need every row's score; those that compare classes are None if one is missing."""
        if not self.scores:
            return {}
        import numpy as np
        from sklearn import metrics

        labels = np.concatenate([labels for labels, _ in self.scores])
        scores = np.concatenate([scores for _, scores in self.scores])
        if scores.ndim == 1 or scores.shape[1] == 2:
            positive = scores if scores.ndim == 1 else scores[:, 1]
            both = len(np.unique(labels)) == 2
            return {
                "log_loss": metrics.log_loss(labels, positive, labels=[0, 1]),
                "brier": metrics.brier_score_loss(labels, positive, pos_label=1),
                "roc_auc": metrics.roc_auc_score(labels, positive) if both else None,
                "average_precision": metrics.average_precision_score(labels, positive) if both else None,
            }
        classes = np.arange(scores.shape[1])
        every = len(np.unique(labels)) == len(classes)
        return {
            "log_loss": metrics.log_loss(labels, scores, labels=classes),
            "roc_auc": metrics.roc_auc_score(labels, scores, multi_class="ovr", labels=classes) if every else None,
        }


class RegressionTally:
    """Sums of the errors, and mean and squared deviation of the labels, merged by the formula of Chan, Golub and LeVeque
    (1979), which is numerically stable when labels are large and vary little."""

    def __init__(self) -> None:
        self.rows = 0
        self.mean = self.deviation = 0.0
        self.absolute = self.squared = self.largest = 0.0
        #: columns: random number, label, error
        self.points: Any = None

    def update(self, labels: np.ndarray, predictions: np.ndarray, scores: np.ndarray | None) -> None:
        import numpy as np

        truth = labels.astype(np.float64).reshape(-1)
        errors = predictions.astype(np.float64).reshape(-1) - truth
        other = type(self)()
        other.rows, other.mean = len(truth), float(truth.mean())
        other.deviation = float(((truth - other.mean) ** 2).sum())
        other.absolute, other.squared = float(abs(errors).sum()), float((errors**2).sum())
        other.largest = float(abs(errors).max())
        other.points = np.stack([np.random.default_rng().random(len(truth)), truth, errors])
        self.merge(other)

    def merge(self, other: Self) -> None:
        import numpy as np

        rows, apart = self.rows + other.rows, other.mean - self.mean
        self.deviation += other.deviation + apart**2 * self.rows * other.rows / rows
        self.mean += apart * other.rows / rows
        self.rows = rows
        self.absolute += other.absolute
        self.squared += other.squared
        self.largest = max(self.largest, other.largest)
        points = other.points if self.points is None else np.concatenate([self.points, other.points], axis=1)
        self.points = points[:, np.argsort(points[0])[:PLOT_POINTS]]

    def compute(self) -> dict[str, Any]:
        mse = self.squared / self.rows
        return {
            "rows": self.rows,
            "mae": self.absolute / self.rows,
            "mse": mse,
            "rmse": mse**0.5,
            "r2": 1 - self.squared / self.deviation if self.deviation > 0 else None,
            "max_error": self.largest,
        }


class TorchMetricsTally:
    """A `torchmetrics` collection, merged by its states. It gets the scores if there are any."""

    def __init__(self, make: Callable[[], Any]) -> None:
        from torchmetrics import MetricCollection

        made = make()
        self.collection = made if isinstance(made, MetricCollection) else MetricCollection({type(made).__name__: made})
        self.rows = 0

    def update(self, labels: np.ndarray, predictions: np.ndarray, scores: np.ndarray | None) -> None:
        import torch

        given = predictions if scores is None else scores
        # one by one: after its first update a collection shares states between metrics, and a merge would count them twice
        for metric in self.collection.values(copy_state=False):
            metric.update(torch.as_tensor(given), torch.as_tensor(labels))
        self.rows += len(labels)

    def merge(self, other: Self) -> None:
        for name, metric in self.collection.items(keep_base=True, copy_state=False):
            metric.merge_state(other.collection[name])
        self.rows += other.rows

    def compute(self) -> dict[str, Any]:
        return {"rows": self.rows, **{name: metric.compute() for name, metric in self.collection.items()}}


class Both:
    """The built-in metrics and the user's, over the same rows."""

    def __init__(self, *tallies: Any):
        self.tallies = tallies

    def update(self, labels: np.ndarray, predictions: np.ndarray, scores: np.ndarray | None) -> None:
        for tally in self.tallies:
            tally.update(labels, predictions, scores)

    def merge(self, other: Self) -> None:
        for tally, its in zip(self.tallies, other.tallies, strict=True):
            tally.merge(its)

    def compute(self) -> dict[str, Any]:
        return {name: value for tally in self.tallies for name, value in tally.compute().items()}


def tally_maker(spec: EvaluateSpec, torchmetrics: Callable[[], Any] | None) -> Callable[[], Both]:
    """Return a factory of empty tallies for the spec. Raises SpecError if a package is missing."""
    if spec.task == "classification":
        require("task", spec.task, "sklearn", "evaluate")
    if torchmetrics is not None:
        require("torchmetrics", spec.torchmetrics, "torchmetrics", "torchmetrics")
    return functools.partial(_make, spec.task, torchmetrics)


def _make(task: str | None, torchmetrics: Callable[[], Any] | None) -> Both:
    tallies: list[Tally] = []
    if task == "classification":
        tallies.append(ClassificationTally())
    if task == "regression":
        tallies.append(RegressionTally())
    if torchmetrics is not None:
        tallies.append(TorchMetricsTally(torchmetrics))
    return Both(*tallies)
