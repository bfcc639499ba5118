"""How each kind of step ended, in words."""

from pathlib import Path
from typing import Any

import pytest

from plugin_core import EvaluateSpec, EvaluationResult, RunRef, TrainResult
from plugin_core.registry.base import ModelVersion
from plugin_core.specs import outcomes
from plugin_core.specs.step_kinds import step_kind
from tests.support.fake_steps import spec_at


def words(spec: Any, result: Any) -> list[str]:
    return step_kind(spec.kind).words(spec, result)


def test_an_evaluation_says_which_conditions_it_met_or_missed(tmp_path: Path) -> None:
    fields = {"evaluate": "devtools.steps:evaluate", "checkpoint": str(tmp_path), "compare_to": str(tmp_path)}
    spec = EvaluateSpec(**fields, thresholds={"accuracy": {"min": 0.95}, "mae": {"max": 2}}, must_beat=["f1"])
    ref = RunRef(uri=str(tmp_path), name="run")
    metrics = {"accuracy": 0.958, "mae": 1.5, "f1": 0.9}
    passed = EvaluationResult(run=ref, metrics=metrics, compared_metrics={"f1": 0.8}, passed=True)
    assert words(spec, passed)[0] == "passed: accuracy 0.958 ≥ 0.95; mae 1.5 ≤ 2; f1 0.9 against 0.8 of the other"
    failed = EvaluationResult(run=ref, metrics=metrics, passed=False, failed={"accuracy": "0.958 < min 0.96 (by 0.002)"})
    assert words(spec, failed)[0] == "failed: accuracy 0.958 < min 0.96 (by 0.002)"
    assert words(EvaluateSpec(**{**fields, "compare_to": None}), passed)[0] == "evaluated: accuracy=0.958 mae=1.5 f1=0.9"


def test_a_training_says_its_best_and_last_checkpoint(tmp_path: Path) -> None:
    config = {"name": "run", "checkpoint_config": {"checkpoint_score_attribute": "loss", "checkpoint_score_order": "min"}}
    spec = spec_at(tmp_path, run_config=config)
    result = TrainResult(
        run=RunRef(uri="/r", name="run"),
        metrics={"loss": 0.5},
        reports=3,
        checkpoint="/r/c3",
        best_checkpoint="/r/c1",
        best_score=0.25,
    )
    lines = ["trained: 3 reports; last loss=0.5", "best checkpoint with loss=0.25: /r/c1", "last checkpoint: /r/c3"]
    assert words(spec, result) == lines


def test_metrics_of_any_text_and_number_make_one_short_line() -> None:
    said = outcomes.metrics({"text": "a\nb " + "c" * 1000, **{f"m{n}": n / 3 for n in range(20)}})
    assert said.startswith("text=a b ccc")
    assert said.endswith("m10=3.333 … (9 more)")
    assert len(said) < 300
    assert "\n" not in said


def test_a_promotion_in_words() -> None:
    version = ModelVersion(name="digits", version=3, checkpoint="/r/c1", metrics={"accuracy": 0.97})
    said = "promoted: version 3 of digits is the champion, accuracy=0.97; checkpoint: /r/c1"
    assert outcomes.promoted(version, "champion") == said


@pytest.mark.parametrize(("kind", "fields", "first"), [
    ("retrain", {"outcome": "kept", "reason": "accuracy: 0.958 < the other's 0.971", "champion": 2},
     "not promoted: accuracy: 0.958 < version 2's 0.971; version 2 stays the champion"),
    ("retrain", {"outcome": "promoted", "reason": "version 3 of digits is the champion", "champion": 3},
     "promoted: version 3 of digits is the champion"),
    ("retrain", {"outcome": "skipped", "reason": "the data is that of version 2", "champion": 0},
     "skipped: the data is that of version 2"),
    ("batch_infer", {"output": "/out", "rows": 1200}, "predicted: 1200 rows"),
    ("ray_job", {"value": {"rows": 3, "path": "/out"}}, "finished: returned rows=3 path=/out"),
    ("ray_job", {"value": None}, "finished"),
    ("tune", {"best": {"run": {"uri": "/r", "name": "t"}}, "best_config": {"lr": 0.1}, "table": "/t",
              "metrics": {"loss": 0.5}, "trials": {"finished": 3, "failed": 1}},
     "found: the best trial with loss=0.5: lr=0.1"),
])  # fmt: skip
def test_every_kind_of_step_says_how_it_ended(kind: str, fields: dict[str, Any], first: str) -> None:
    class Spec:
        alias, metric, command = "champion", "loss", None

    declared = step_kind(kind)
    assert declared.words(Spec(), declared.result(run=RunRef(uri="/r", name="r"), **fields))[0] == first
