"""Evaluation on a real Ray head: parallel predictors, exact metrics, slices, plots, the comparison to a champion."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from sklearn import metrics

from plugin_core import EvaluateSpec, LocalCluster, RunConfig, run
from plugin_core.driver.evaluate.step import OTHER
from plugin_core.errors import SpecError, UserCodeError
from plugin_core.supervisor.events import Event


class Shifted:
    """Predicts the true label except in every `wrong`th row, as the checkpoint says."""

    def __init__(self, checkpoint: Any):
        with checkpoint.as_directory() as folder:
            self.wrong = json.loads(Path(folder, "state.json").read_text())["wrong"]

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        off = batch["row"] % self.wrong == 0
        predictions = np.where(off, (batch["label"] + 1) % 3, batch["label"])
        return {"prediction": predictions, "p": np.eye(3)[predictions] * 0.8 + 0.2 / 3}


def torch_metrics() -> Any:
    from torchmetrics.classification import MulticlassAUROC

    return MulticlassAUROC(3)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("rows")
    for part in range(4):
        # unequal parts: a mean of means would be another number
        row = np.arange(10 ** (part % 3 + 1)) + 10_000 * part
        region = [("north", "south")[int(n % 3 == 0)] for n in row]
        table = pa.table({"row": row, "label": row % 3, "region": region})
        pyarrow.parquet.write_table(table, folder / f"part-{part}.parquet")
    return str(folder)


def checkpoint(tmp_path: Path, wrong: int) -> str:
    folder = tmp_path / f"checkpoint-{wrong}"
    folder.mkdir(exist_ok=True)
    (folder / "state.json").write_text(json.dumps({"wrong": wrong}))
    return str(folder)


def spec(tmp_path: Path, rows: str, **fields: Any) -> EvaluateSpec:
    defaults: dict[str, Any] = {
        "predictor": Shifted,
        "task": "classification",
        "checkpoint": checkpoint(tmp_path, 4),
        "dataset": {"path": rows, "format": "parquet"},
        "batch_size": 128,
        "run_config": RunConfig(name="evaluate", storage_path=str(tmp_path / "runs")),
    }
    return EvaluateSpec(**{**defaults, **fields})


@pytest.mark.slow
def test_two_actors_count_exactly_with_slices_plots_and_a_verdict(cluster: LocalCluster, tmp_path: Path, rows: str) -> None:
    given = {
        "concurrency": 2,
        "slices": ["region"],
        "score_column": "p",
        "torchmetrics": torch_metrics,
        "thresholds": {"accuracy": {"min": 0.5}, "f1": {"min": 0.99}},
        "compare_to": checkpoint(tmp_path, 10),
        "must_beat": {"accuracy": {"tolerance": 0.01}, "MulticlassAUROC": {"mode": "max", "tolerance": 1}},
    }
    told: list[Event] = []
    result = run(spec(tmp_path, rows, **given), cluster, told.append)
    counted = [event.data for event in told if event.kind == "phase" and "rows" in event.data]
    assert {entry["phase"]: entry["rows"] for entry in counted} == {"evaluating": 1120, OTHER: 1120}
    table = pyarrow.parquet.read_table(rows)
    row, label = (table[name].to_numpy() for name in ("row", "label"))
    north = np.array(table["region"].to_pylist()) == "north"

    def accuracy(wrong: int, where: Any = slice(None)) -> float:
        predicted = np.where(row % wrong == 0, (label + 1) % 3, label)
        return float(metrics.accuracy_score(label[where], predicted[where]))

    assert result.metrics["rows"] == len(row)
    assert result.metrics["accuracy"] == pytest.approx(accuracy(4))
    assert 0 < result.metrics["MulticlassAUROC"] < 1
    assert result.slices["region"]["north"]["accuracy"] == pytest.approx(accuracy(4, north))
    assert result.slices["region"]["south"]["rows"] == int((~north).sum())
    assert result.compared_metrics["accuracy"] == pytest.approx(accuracy(10))
    assert set(result.failed) == {"f1", "accuracy"}
    assert "(by 0.1" in result.failed["accuracy"]
    assert Path(result.plots["confusion_matrix"]).read_bytes().startswith(b"\x89PNG")
    assert result.dataset
    assert len(result.reference().model_dump_json()) <= 2048


@pytest.mark.slow
def test_an_earlier_evaluation_is_compared_to_by_its_result(cluster: LocalCluster, tmp_path: Path, rows: str) -> None:
    champion = run(spec(tmp_path, rows), cluster)
    better = spec(
        tmp_path,
        rows,
        checkpoint=checkpoint(tmp_path, 20),
        compare_to=champion.reference().to_json(),
        must_beat=["accuracy"],
        run_config=RunConfig(name="better", storage_path=str(tmp_path / "runs")),
    )
    result = run(better, cluster)
    assert result.passed
    assert result.compared_to == champion.run.uri
    assert result.compared_metrics == champion.metrics


def mean_squares(checkpoint: Any, dataset: Any) -> dict[str, Any]:
    return {"mse": 1.5, "rows": dataset.count()}


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        (
            {"prediction_column": "guess"},
            SpecError,
            "prediction_column: got 'guess', not found in the predictor's output",
        ),
        (
            {"score_column": "q"},
            SpecError,
            "score_column: got 'q', not found in the predictor's output; expected one of row",
        ),
        ({"label_column": "y"}, SpecError, "label_column: got 'y', not found in"),
        ({"slices": ["row"]}, SpecError, "slices: got 'row' with 1120 values; expected at most 1000"),
    ],
)
@pytest.mark.slow
def test_settings_that_do_not_fit_are_reported_once_and_not_retried(
    cluster: LocalCluster, tmp_path: Path, rows: str, fields: dict[str, Any], error: Any, words: str
) -> None:
    with pytest.raises(error) as caught:
        run(spec(tmp_path, rows, **fields), cluster)
    assert words in caught.value.message
    assert not caught.value.retryable


@pytest.mark.slow
def test_an_error_in_a_function_is_the_users(cluster: LocalCluster, tmp_path: Path, rows: str) -> None:
    class Broken:
        def __init__(self, checkpoint: Any):
            raise ValueError("no such layer")

        def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
            return batch

    with pytest.raises(UserCodeError, match="no such layer"):
        run(spec(tmp_path, rows, predictor=Broken), cluster)
