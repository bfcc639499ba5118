"""What a worker hands to Ray in a report."""

from typing import Any

import numpy as np
import pytest

from plugin_core.steps.worker import _safe_metrics


@pytest.mark.parametrize(
    ("metrics", "score", "expected"),
    [
        ({"loss": float("nan"), "a": np.float32(0.5)}, None, {"loss": None, "a": 0.5}),
        ({"loss": float("nan"), "a": 1}, "loss", {"a": 1}),
        ({"loss": 0.5, "a": float("inf")}, "loss", {"loss": 0.5, "a": None}),
        ({"eval": {"loss": float("nan"), "b": 1}}, "eval/loss", {"eval": {"b": 1}}),
    ],
)
def test_metrics_are_json_safe_and_a_score_that_is_no_number_is_left_out(
    metrics: dict[str, Any], score: str | None, expected: dict[str, Any]
) -> None:
    """Ray multiplies the score of a checkpoint, which a null would break; without a score it ranks last."""
    assert _safe_metrics(metrics, score) == expected
