"""Breast cancer as a Prefect flow: XGBoost declared by its parameters, on 2 workers; no train loop to write.

python -m example_flows.breast_cancer_xgboost [STORAGE]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: let it find its neighbours
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from example_flows import demo

if __name__ == "__main__":
    demo.prefect_environment()

from prefect import flow, task

from example_flows.tables import write_tables
from plugin_core import EvaluateSpec, RunConfig, ScalingConfig, Threshold, TrainSpec
from plugin_core.specs.results import EvaluationResult, TrainResult
from plugin_core.storage.location import Location
from prefect_integration import evaluate, train

LABEL = "target"


@task
def make_data(folder: str) -> dict[str, str]:
    """Write `train.parquet` and `test.parquet` under `folder`: 30 features and `target`, 1 for benign."""
    import pyarrow as pa
    from sklearn.datasets import load_breast_cancer
    from sklearn.model_selection import train_test_split

    frame = load_breast_cancer(as_frame=True).frame
    parts = [
        pa.Table.from_pandas(part, preserve_index=False) for part in train_test_split(frame, test_size=0.25, random_state=7)
    ]
    return write_tables(folder, dict(zip(("train", "test"), parts, strict=True)))


def judge(checkpoint: Any, dataset: Any) -> dict[str, float]:
    """AUC and accuracy of the booster in `checkpoint` on `dataset`."""
    import xgboost
    from ray.train.xgboost import RayTrainReportCallback
    from sklearn.metrics import accuracy_score, roc_auc_score

    frame = dataset.to_pandas()
    labels = frame.pop(LABEL)
    scores = RayTrainReportCallback.get_model(checkpoint).predict(xgboost.DMatrix(frame))
    return {"auc": roc_auc_score(labels, scores), "accuracy": accuracy_score(labels, scores > 0.5), "rows": len(labels)}


@flow
def breast_cancer(storage: str = demo.STORAGE) -> tuple[TrainResult, EvaluationResult]:
    run_config = RunConfig(storage_path=storage)
    data = make_data(Location.of(storage).child("breast-cancer-data").uri)
    trained = train(
        TrainSpec(
            framework="xgboost",
            params={"objective": "binary:logistic", "eval_metric": ["logloss", "error"], "max_depth": 3, "eta": 0.2},
            label_column=LABEL,
            num_boost_round=40,
            scaling_config=ScalingConfig(num_workers=2),
            datasets={"train": data["train"]},
            run_config=run_config,
        )
    )
    evaluation = evaluate(
        EvaluateSpec(
            evaluate=judge,
            checkpoint=trained.checkpoint,
            dataset=data["test"],
            thresholds={"auc": Threshold(min=0.97), "accuracy": Threshold(min=0.93)},
            run_config=run_config,
        )
    )
    return trained, evaluation


if __name__ == "__main__":
    sys.exit(demo.show("breast cancer", *breast_cancer(*sys.argv[1:2])))
