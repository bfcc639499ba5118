"""Load the model from an XGBoost checkpoint."""

from __future__ import annotations

from typing import Any


def get_model(checkpoint: Any) -> Any:
    """Return the `xgboost.Booster` in a checkpoint of a declared training or of Ray's callback."""
    from ray.train.xgboost import RayTrainReportCallback

    return RayTrainReportCallback.get_model(checkpoint)
