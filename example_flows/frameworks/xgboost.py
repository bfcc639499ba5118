"""XGBoost without a loop: declared by its parameters, with a dataset for evaluation and early stopping."""

from __future__ import annotations

from typing import Any

from example_flows.frameworks import data
from plugin_core import DatasetConfig, ScalingConfig, TrainSpec

_DATA = "example_flows.frameworks.data:tumours"
SPEC = TrainSpec(
    framework="xgboost",
    params={"objective": "binary:logistic", "eval_metric": ["error", "logloss"], "max_depth": 3, "eta": 0.3},
    label_column="target",
    num_boost_round=60,
    early_stopping_rounds=10,
    checkpoint_frequency=5,
    datasets={part: DatasetConfig(function=_DATA, kwargs={"part": part}) for part in ("train", "test")},
    scaling_config=ScalingConfig(num_workers=2),
    seed=7,
)


def evaluate(checkpoint: Any) -> dict[str, float]:
    import xgboost
    from sklearn.metrics import log_loss

    from plugin_core.loops.xgboost import get_model

    frame = data.tumours("test").to_pandas()
    scores = get_model(checkpoint).predict(xgboost.DMatrix(frame.drop(columns="target")))
    return {"test-logloss": log_loss(frame["target"], scores)}
