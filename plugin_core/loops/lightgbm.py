"""Load the model from a LightGBM checkpoint."""

from __future__ import annotations

from typing import Any


def get_model(checkpoint: Any) -> Any:
    """Return the `lightgbm.Booster` in a checkpoint of a declared training or of Ray's callback."""
    from ray.train.lightgbm import RayTrainReportCallback

    return RayTrainReportCallback.get_model(checkpoint)
