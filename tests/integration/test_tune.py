"""Searches on a real Ray head: trials are Ray Train runs, a killed search continues, PBT passes checkpoints on."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from devtools.chaos import Running, drivers, kill, wait_until
from plugin_core import LocalCluster, TrainSpec, best_train_spec, run
from plugin_core.errors import SpecError, UserCodeError
from plugin_core.runs.directory import RunDir
from plugin_core.runs.journal import read_reports
from tests.support.searches import spec, table


def without_checkpoint(config: dict[str, Any]) -> None:
    import ray.train

    ray.train.report({"value": config["step"]})


def as_in_rays_examples(config: dict[str, Any]) -> None:
    from ray import tune

    for epoch in range(2):
        tune.report({"value": config["step"] * epoch})


def report_wrongly(config: dict[str, Any]) -> None:
    from ray import tune

    tune.report(config["step"])


@pytest.mark.slow
def test_the_best_trial_is_found_with_its_checkpoint(cluster: LocalCluster, tmp_path: Path) -> None:
    space = {"train_loop_config": {"step": {"grid_search": [2, 1]}}}
    given = spec(tmp_path, param_space=space)
    result = run(given, cluster)
    assert result.trials == {"finished": 2, "stopped": 0, "failed": 0}
    assert result.best_config == {"train_loop_config": {"step": 2}}
    assert {step: row["value"] for step, row in table(result).items()} == {1: 3.0, 2: 6.0}
    best = best_train_spec(result, given.train)
    assert best.train_loop_config["step"] == 2
    with result.checkpoint.as_directory() as folder:
        assert json.loads(Path(folder, "state.json").read_text())["value"] == 6.0


@pytest.mark.slow
def test_trials_that_report_to_ray_tune_are_searched(cluster: LocalCluster, tmp_path: Path) -> None:
    train = TrainSpec(framework="python", train_loop_per_worker=as_in_rays_examples)
    result = run(spec(tmp_path, train=train), cluster)
    assert (result.best_config, result.metrics["value"]) == ({"train_loop_config": {"step": 3}}, 3)


@pytest.mark.slow
def test_a_killed_search_continues_and_keeps_its_finished_trials(cluster: LocalCluster, tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    starts.mkdir()
    config = {"starts": str(starts), "hold": [2, 1], "go": str(tmp_path / "go")}
    space = {"train_loop_config": {"step": {"grid_search": [1, 2]}}}
    given = spec(tmp_path, param_space=space, config=config, max_concurrent_trials=1)
    running = Running(given, cluster)
    wait_until(lambda: len(list(starts.iterdir())) == 2)
    wait_until(lambda: any(report["checkpoint"] for report in read_reports(newest(running.rundir, starts))))
    (driver,) = drivers(running.rundir.uri)
    kill(driver)
    # not before the second attempt's start is told: a killed driver's workers go on for a moment, and would report
    wait_until(lambda: len(newest_start(starts).read_text().split()) == 2)
    (tmp_path / "go").touch()
    result = running.result()
    assert result.run.attempt == 2
    assert result.trials == {"finished": 2, "stopped": 0, "failed": 0}
    assert result.best_config == {"train_loop_config": {"step": 2}}
    assert result.metrics["value"] == 6.0
    assert {step: row["value"] for step, row in table(result).items()} == {1: 3.0, 2: 6.0}
    begun = {path.name: path.read_text().split() for path in starts.iterdir()}
    assert sorted(len(starts) for starts in begun.values()) == [1, 2], begun
    assert next(starts for starts in begun.values() if len(starts) == 2) == ["0", "1"]


def newest_start(starts: Path) -> Path:
    """What the trial that began last recorded about its starts."""
    return max(starts.iterdir(), key=lambda path: path.stat().st_mtime)


def newest(rundir: RunDir, starts: Path) -> RunDir:
    """The trial that began last."""
    return rundir.child(newest_start(starts).name)


@pytest.mark.slow
def test_a_failed_trial_is_reported_and_the_others_count(cluster: LocalCluster, tmp_path: Path) -> None:
    result = run(spec(tmp_path, config={"fail": 3}), cluster)
    assert result.trials == {"finished": 2, "stopped": 0, "failed": 1}
    assert result.best_config == {"train_loop_config": {"step": 2}}
    assert "step 3 is no good" in table(result)[3]["error"]
    (warning,) = result.warnings
    assert re.match("1 of 3 trials failed; the first: .*step 3 is no good", warning)
    assert result.best.metrics == result.metrics != {}


@pytest.mark.slow
def test_a_search_whose_trials_all_fail_fails_with_the_first_error(cluster: LocalCluster, tmp_path: Path) -> None:
    space = {"train_loop_config": {"step": {"grid_search": [5]}}}
    with pytest.raises(UserCodeError, match=r"all 1 trials failed; the first: .*step 5 is no good"):
        run(spec(tmp_path, param_space=space, config={"fail": 5}), cluster)


@pytest.mark.slow
def test_asha_stops_bad_trials_and_optuna_suggests(cluster: LocalCluster, tmp_path: Path) -> None:
    given = spec(
        tmp_path,
        param_space={"train_loop_config": {"step": {"uniform": [0, 1]}}},
        num_samples=3,
        config={"epochs": 4},
        scheduler={"type": "asha", "grace_period": 1, "reduction_factor": 2, "max_t": 4},
        search_alg={"type": "optuna", "seed": 1},
        max_concurrent_trials=1,
    )
    result = run(given, cluster)
    assert sum(result.trials.values()) == 3
    rows = json.loads(Path(result.table).read_text())
    assert result.metrics["value"] == pytest.approx(max(row["value"] for row in rows))
    assert result.best.checkpoint is not None


@pytest.mark.slow
def test_pbt_hands_the_better_trials_checkpoint_over(cluster: LocalCluster, tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    starts.mkdir()
    given = spec(
        tmp_path,
        param_space={"train_loop_config": {"step": {"grid_search": [0.0, 10.0]}}},
        config={"epochs": 6, "starts": str(starts)},
        scheduler={
            "type": "pbt",
            "perturbation_interval": 2,
            "quantile_fraction": 0.5,
            "hyperparam_mutations": {"train_loop_config": {"step": {"choice": [5.0, 20.0]}}},
            "synch": True,
        },
        max_concurrent_trials=2,
    )
    result = run(given, cluster)
    legs = {path.name: path.read_text().split() for path in starts.iterdir()}
    assert len(legs) > 2, legs
    taken_over = [name for name, begun in legs.items() if name.count("-") > 1 and begun[0] != "0"]
    assert taken_over, legs
    # nobody ended with what steps of 0 alone give
    assert all(row["value"] > 0 for row in json.loads(Path(result.table).read_text()))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"metric": "vlaue"},
            "metric: got 'vlaue', which the train function did not report; expected one of epoch, value, step",
        ),
        (
            {"train": TrainSpec(framework="python", train_loop_per_worker=report_wrongly)},
            "metrics: got 1; expected a dict, as in ray.train.report({'loss': 0.5})",
        ),
        (
            {
                "train": TrainSpec(
                    framework="python", train_loop_per_worker=without_checkpoint, train_loop_config={"step": 0}
                ),
                "scheduler": {
                    "type": "pbt",
                    "perturbation_interval": 1,
                    "hyperparam_mutations": {"train_loop_config": {"step": {"choice": [5.0, 20.0]}}},
                },
            },
            "which passes checkpoints between trials, but the train function reported none by report 1; expected",
        ),
    ],
)
@pytest.mark.slow
def test_a_mistake_that_only_a_report_shows_ends_the_search_at_the_first_report(
    cluster: LocalCluster, tmp_path: Path, fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(SpecError) as caught:
        run(spec(tmp_path, max_concurrent_trials=1, **fields), cluster)
    assert words in caught.value.message
    assert len(list(Path(tmp_path, "search", "_children").iterdir())) == 1


@pytest.mark.slow
def test_a_budget_of_time_ends_a_search_with_what_there_is(cluster: LocalCluster, tmp_path: Path) -> None:
    config = {"hold": [3, 1], "go": str(tmp_path / "never")}
    result = run(spec(tmp_path, config=config, max_concurrent_trials=1, time_budget_s=90), cluster)
    assert result.trials["finished"] >= 1
    assert sum(result.trials.values()) < 4
    assert result.metrics["value"] >= 3.0
