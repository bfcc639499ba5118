"""What a search makes of its trials."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plugin_core import RunConfig, TrainSpec, TuneSpec
from plugin_core.driver.tune import step
from plugin_core.driver.tune.collect import collect
from plugin_core.errors import UserCodeError
from plugin_core.runs.context import StepContext
from plugin_core.runs.directory import AttemptEnd, Heartbeat, RunDir
from plugin_core.specs.results import RunRef, TrainResult


def trial(number: int, loss: float | None, error: Exception | None = None) -> Any:
    """A trial as Ray Tune's grid of results has it."""
    metrics = {"trial_id": f"t{number}", "leg": f"trial-t{number}", "loss": loss}
    return SimpleNamespace(metrics=metrics, error=error, config={"train_loop_config": {"lr": number}})


@pytest.fixture
def context(tmp_path: Path) -> StepContext:
    spec = TuneSpec(
        train=TrainSpec(train_loop_per_worker="a:b"),
        param_space={"train_loop_config": {"lr": {"choice": [1, 2, 3]}}},
        metric="loss",
        mode="min",
        run_config=RunConfig(name="search", storage_path=str(tmp_path)),
    )
    rundir = RunDir.of(spec)
    rundir.write_spec(spec)
    for number in (1, 2):
        child = rundir.child(f"trial-t{number}")
        run = RunRef(uri=child.uri, name=child.name)
        child.write_result(TrainResult(run=run, metrics={"loss": number / 10, "epoch": 4}, reports=5))
    return StepContext(spec, rundir, 1, {}, lambda phase: None)


def test_the_best_trials_result_comes_with_its_metrics(context: StepContext) -> None:
    found = collect([trial(1, 0.1), trial(2, 0.2)], context.spec, context)  # type: ignore[arg-type]
    assert found.best.metrics == found.metrics == {"loss": 0.1, "epoch": 4}
    assert found.warnings == []


def test_a_failed_trial_leaves_a_warning_with_the_first_error(context: StepContext) -> None:
    failed = [trial(3, None, UserCodeError("the data is bad")), trial(4, None, UserCodeError("so is this"))]
    found = collect([trial(1, 0.1), trial(2, 0.2), *failed], context.spec, context)  # type: ignore[arg-type]
    assert found.trials == {"finished": 2, "stopped": 0, "failed": 2}
    assert found.warnings == ["2 of 4 trials failed; the first: the data is bad"]


def test_the_time_budget_counts_a_cancelled_attempt_up_to_its_last_heartbeat(context: StepContext) -> None:
    context.rundir.beat(1, Heartbeat(30, "running", 60.0))
    context.rundir.record_end(1, AttemptEnd("cancelled"))  # by the supervisor, which does not know how long it took
    second = StepContext(context.spec, context.rundir, 2, {}, lambda phase: None)
    before = time.monotonic()
    deadline = step._deadline(context.spec.model_copy(update={"time_budget_s": 90.0}), second)
    assert deadline is not None
    assert before + 30 <= deadline <= time.monotonic() + 30
