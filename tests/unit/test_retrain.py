"""A retraining that is killed at an awkward moment."""

from pathlib import Path

import pytest

from plugin_core import CheckpointRef, EvaluationResult, RunRef, TrainResult, promote
from plugin_core.driver import retrain
from plugin_core.registry.api import default_registry
from plugin_core.runs.context import StepContext
from plugin_core.runs.directory import RunDir
from plugin_core.specs import Evaluation, RetrainSpec, RunConfig, TrainSpec

TRAIN = TrainSpec(framework="python", train_loop_per_worker="devtools.steps:counting_loop")


@pytest.fixture
def spec(tmp_path: Path) -> RetrainSpec:
    return RetrainSpec(
        model="digits",
        train=TRAIN,
        evaluate=Evaluation(evaluate="a:b", must_beat={"accuracy": {"tolerance": -0.01}}),  # type: ignore[dict-item]
        run_config=RunConfig(name="monday", storage_path=str(tmp_path)),
    )


def attempt(spec: RetrainSpec, number: int) -> StepContext:
    rundir = RunDir.of(spec)
    rundir.write_spec(spec)
    return StepContext(spec, rundir, number, {}, lambda phase: None)


def test_a_promotion_whose_attempt_was_killed_before_its_result_is_not_judged_against_itself(
    spec: RetrainSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = attempt(spec, 2)
    part = context.rundir.child(retrain.part_name(context.rundir, "train"))
    part.write_child_spec(TRAIN)
    checkpoint = part.location.child("checkpoint_1")
    checkpoint.child("weights").write(b"w")
    run = RunRef(uri=part.uri, name=part.name)
    trained = TrainResult(run=run, checkpoint=CheckpointRef(uri=checkpoint.uri), reports=1)
    part.write_result(trained)
    judge = context.rundir.child(retrain.part_name(context.rundir, "evaluate-v0"))
    judged = EvaluationResult(
        run=RunRef(uri=judge.uri, name=judge.name), metrics={"accuracy": 0.9}, passed=True, checkpoint=trained.checkpoint
    )
    judge.write_result(judged)
    promote(judged, "digits", registry=default_registry(str(tmp_path)))
    monkeypatch.setattr(retrain, "run_step", lambda part: pytest.fail(f"{part.rundir.name} runs again"))
    result = retrain._train_and_promote(
        context, spec, default_registry(str(tmp_path)), {"warm_start": None, "dataset": None}
    )
    assert (result.outcome, result.champion, result.metrics) == ("promoted", 1, {"accuracy": 0.9})
    assert (result.evaluated, result.reason) == (judge.uri, "version 1 of digits is the champion")
