"""Searches that go on from a finished one, and that vary functions, on a real Ray head."""

import json
from pathlib import Path
from typing import Any

import pytest

from devtools.chaos import Running, drivers, kill, wait_until
from plugin_core import LocalCluster, TrainSpec, TuneSpec, run
from plugin_core.errors import SpecError
from plugin_core.runs.directory import RunDir
from plugin_core.runs.journal import read_reports
from tests.support.searches import loop, spec, table


def twice(config: dict[str, Any]) -> None:
    import ray.train

    ray.train.report({"value": 2.0 * config["step"]})


def thrice(config: dict[str, Any]) -> None:
    import ray.train

    ray.train.report({"value": 3.0 * config["step"]})


def named(name: str, given: TuneSpec) -> TuneSpec:
    return given.with_name(name)


@pytest.mark.slow
def test_trials_run_the_functions_that_a_search_varies(cluster: LocalCluster, tmp_path: Path) -> None:
    train = TrainSpec(framework="python", train_loop_per_worker=loop, train_loop_config={"step": 1})
    space = {"train_loop_per_worker": {"grid_search": [twice, thrice]}}
    result = run(spec(tmp_path, train=train, param_space=space), cluster)
    assert result.trials == {"finished": 2, "stopped": 0, "failed": 0}
    assert (result.metrics["value"], result.best_config["train_loop_per_worker"].partition("#")[0]) == (3.0, "value:thrice")


@pytest.mark.slow
def test_a_search_trains_further_or_gets_more_trials(cluster: LocalCluster, tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    starts.mkdir()
    config = {"starts": str(starts)}
    found = run(spec(tmp_path, config=config), cluster)
    assert table(found)[3]["value"] == 9.0
    first = {path.name: path.read_text() for path in starts.iterdir()}
    before = {path: path.read_bytes() for path in Path(found.run.uri).rglob("*") if path.is_file()}

    again = {"search": found, "trials": "all"}
    longer = run(named("longer", spec(tmp_path, config={**config, "epochs": 5}, resume_from=again)), cluster)
    assert longer.trials == {"finished": 3, "stopped": 0, "failed": 0}
    assert {step: row["value"] for step, row in table(longer).items()} == {1: 5.0, 2: 10.0, 3: 15.0}
    assert all(text == "0\n3\n" for text in (path.read_text() for path in starts.iterdir())), "from the third epoch on"
    assert first.keys() == {path.name for path in starts.iterdir()}, "under their names of then"

    with pytest.raises(SpecError, match="no trial had anything left to train"):
        run(named("idle", spec(tmp_path, config=config, resume_from={"search": found, "trials": "best"})), cluster)

    grid = {"train_loop_config": {"step": {"grid_search": [1, 3, 2, 6]}}}
    more = run(named("more", spec(tmp_path, config=config, param_space=grid, resume_from=longer)), cluster)
    assert more.trials == {"finished": 1, "stopped": 0, "failed": 0, "kept": 3}
    assert (more.best_config, more.metrics["value"]) == ({"train_loop_config": {"step": 6}}, 18.0)
    assert before == {path: path.read_bytes() for path in before}, "the finished search stays as it is"


@pytest.mark.slow
def test_a_killed_search_that_adds_trials_goes_on_with_those_and_keeps_the_others(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    starts.mkdir()
    config = {"starts": str(starts), "hold": [7, 1], "go": str(tmp_path / "go")}
    found = run(spec(tmp_path, config=config), cluster)
    before = len(list(starts.iterdir()))
    grid = {"train_loop_config": {"step": {"grid_search": [1, 3, 2, 6, 7]}}}
    given = named(
        "more", spec(tmp_path, config=config, param_space=grid, resume_from=found.run.uri, max_concurrent_trials=1)
    )
    running = Running(given, cluster)
    wait_until(lambda: len(list(starts.iterdir())) == before + 2)
    newest = max(starts.iterdir(), key=lambda path: path.stat().st_mtime)
    wait_until(lambda: any(report["checkpoint"] for report in read_reports(running.rundir.child(newest.name))))
    (driver,) = drivers(running.rundir.uri)
    kill(driver)
    wait_until(lambda: len(newest.read_text().split()) == 2)
    Path(config["go"]).touch()
    result = running.result()
    assert result.run.attempt == 2
    assert result.trials == {"finished": 2, "stopped": 0, "failed": 0, "kept": 3}
    assert {step: row["value"] for step, row in table(result).items()} == {1: 3.0, 2: 6.0, 3: 9.0, 6: 18.0, 7: 21.0}
    assert sorted(len(path.read_text().split()) for path in starts.iterdir()) == [1, 1, 1, 1, 2]


@pytest.mark.slow
def test_optuna_knows_the_trials_of_before(cluster: LocalCluster, tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "param_space": {"train_loop_config": {"step": {"uniform": [0, 1]}}},
        "search_alg": {"type": "optuna", "seed": 1},
        "num_samples": 2,
    }
    found = run(spec(tmp_path, **fields), cluster)
    result = run(named("more", spec(tmp_path, **fields, resume_from=found)), cluster)
    assert result.trials == {"finished": 2, "stopped": 0, "failed": 0, "kept": 2}
    rows = json.loads(Path(result.table).read_text())
    assert len({row["config"]["train_loop_config"]["step"] for row in rows}) == 4
    logs = Path(RunDir.at(result.run.uri).step.child("logs").path)
    log = "".join(path.read_text() for path in logs.rglob("*") if path.is_file())
    assert "told of 2 of the 2 trials that are kept" in log
