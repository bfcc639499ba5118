"""A retraining that is killed at an awkward moment."""

import json
from pathlib import Path
from typing import Any

import pytest

from plugin_core import CheckpointRef, EvaluationResult, RunRef, TrainResult, promote
from plugin_core.driver import retrain
from plugin_core.registry.api import default_registry
from plugin_core.runs.context import StepContext
from plugin_core.runs.directory import RunDir
from plugin_core.runs.journal import JournalWriter, iter_reports
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


def test_the_reports_of_a_training_are_relayed_once_each_and_keep_their_numbers(spec: RetrainSpec) -> None:
    """Also those from just before a kill."""
    first, second = attempt(spec, 1), attempt(spec, 2)
    part = first.rundir.child("train")

    def reported(attempt: int, report: int, index: int) -> dict[str, Any]:
        return {"report": report, "index": index, "time": float(report), "metrics": {"n": report}, "checkpoint": "c"}

    def write(attempt: int, *reports: tuple[int, int]) -> None:
        writer = JournalWriter(part, attempt)
        for report, index in reports:
            writer.append(reported(attempt, report, index))
        writer.close()

    with retrain._relayed(part, first):
        write(1, (1, 1), (2, 2))
    write(1, (3, 3))  # nobody relays it any more
    with retrain._relayed(part, second):
        write(2, (4, 2), (5, 3))
    entries = list(iter_reports(first.rundir))
    told = [(entry["attempt"], entry["report"], entry["index"], entry["time"]) for entry in entries]
    assert told == [(1, 1, 1, 1.0), (1, 2, 2, 2.0), (2, 3, 3, 3.0), (2, 4, 2, 4.0), (2, 5, 3, 5.0)]
    assert [entry["report"] for entry in entries if entry.get("late")] == [3], json.dumps(entries)
    assert all(entry["checkpoint"] is None for entry in entries)
