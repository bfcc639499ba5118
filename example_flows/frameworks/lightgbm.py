"""LightGBM without a loop: declared by its parameters, with a dataset for evaluation and early stopping."""

from __future__ import annotations

from typing import Any

from example_flows.frameworks import data
from plugin_core import DatasetConfig, ScalingConfig, TrainSpec

_DATA = "example_flows.frameworks.data:tumours"
SPEC = TrainSpec(
    framework="lightgbm",
    params={"objective": "binary", "metric": "binary_logloss", "num_leaves": 7, "learning_rate": 0.3},
    label_column="target",
    num_boost_round=60,
    early_stopping_rounds=10,
    checkpoint_frequency=5,
    datasets={part: DatasetConfig(function=_DATA, kwargs={"part": part}) for part in ("train", "test")},
    scaling_config=ScalingConfig(num_workers=2),
    seed=7,
)


def evaluate(checkpoint: Any) -> dict[str, float]:
    from sklearn.metrics import log_loss

    from plugin_core.loops.lightgbm import get_model

    frame = data.tumours("test").to_pandas()
    scores = get_model(checkpoint).predict(frame.drop(columns="target").to_numpy())
    return {"test-binary_logloss": log_loss(frame["target"], scores)}
