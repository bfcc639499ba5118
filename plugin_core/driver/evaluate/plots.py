"""Plots the confusion matrix or the residuals as PNG."""

from __future__ import annotations

from typing import Any

from plugin_core.driver.evaluate.tallies import Both, ClassificationTally, RegressionTally
from plugin_core.driver.figures import new_figure, png

#: The most classes for which the matrix shows numbers in its cells.
NUMBERED_CLASSES = 20
#: The most classes for which a matrix is drawn.
DRAWN_CLASSES = 200


def plots(tally: Both) -> dict[str, bytes]:
    """Plot a tally; returns PNGs by name, none without matplotlib."""
    drawn: dict[str, bytes] = {}
    for part in tally.tallies:
        figure = new_figure(6, 5)
        if figure is None:
            return {}
        if isinstance(part, ClassificationTally) and _confusion_matrix(part, figure):
            drawn["confusion_matrix"] = png(figure)
        elif isinstance(part, RegressionTally):
            _residuals(part, figure)
            drawn["residuals"] = png(figure)
    return drawn


def _confusion_matrix(tally: ClassificationTally, figure: Any) -> bool:
    counts = tally.counts
    classes = sorted(set(counts.index.get_level_values("label")) | set(counts.index.get_level_values("prediction")))
    if len(classes) > DRAWN_CLASSES:
        return False
    table = counts.unstack("prediction", fill_value=0).reindex(index=classes, columns=classes, fill_value=0)
    matrix = table.to_numpy(dtype=float)
    axes = figure.subplots()
    figure.colorbar(axes.imshow(matrix, cmap="Blues"), ax=axes)
    if len(classes) <= NUMBERED_CLASSES:
        axes.set_xticks(range(len(classes)), [str(name) for name in classes], rotation=45 if len(classes) > 10 else 0)
        axes.set_yticks(range(len(classes)), [str(name) for name in classes])
        for row, column in zip(*matrix.nonzero(), strict=True):
            count = matrix[row, column]
            axes.text(column, row, f"{count:g}", ha="center", va="center", color="w" if count > matrix.max() / 2 else "k")
    axes.set_xlabel("prediction")
    axes.set_ylabel("label")
    return True


def _residuals(tally: RegressionTally, figure: Any) -> None:
    axes = figure.subplots()
    _, labels, errors = tally.points
    axes.scatter(labels, errors, s=6, alpha=0.5)
    axes.axhline(0, color="k", linewidth=0.8)
    axes.set_xlabel("label")
    axes.set_ylabel("prediction − label")
    axes.grid(alpha=0.3)
