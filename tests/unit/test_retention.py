"""What retention leaves, and what it deletes."""

import os
import time
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from plugin_core import CheckpointRef, RunRef, TrainResult
from plugin_core.cli import app
from plugin_core.journal import JournalWriter
from plugin_core.pins import pin
from plugin_core.retention import checkpoints, prunable, prune
from plugin_core.rundir import AttemptEnd, RunDir
from plugin_core.specs import parse_spec
from plugin_core.storage import Location

DAY = timedelta(days=1)
NAMES = ["checkpoint_a001_000001", "checkpoint_a001_000002", "checkpoint_a001_000003"]


def make_run(storage: Path, name: str = "run", reported: int = 2, result: bool = True, age_days: float = 2) -> RunDir:
    """A run with three checkpoints, of which so many were reported, and a result that names the second one."""
    rundir = RunDir.at(str(storage / name))
    rundir.write_spec(parse_spec({"framework": "python", "train_loop_per_worker": "a:b"}).with_name(name, str(storage)))
    rundir.claim(1, "address", "incarnation")
    journal = JournalWriter(rundir, 1)
    for number, checkpoint in enumerate(NAMES, 1):
        (storage / name / checkpoint).mkdir()
        (storage / name / checkpoint / "model").write_text("1")
        if number <= reported:
            journal.append({"report": number, "index": number, "metrics": {"loss": 1 / number}, "checkpoint": checkpoint})
    journal.close()
    then = time.time() - age_days * 86400
    if result:
        named = CheckpointRef(uri=str(storage / name / NAMES[1]))
        rundir.write_result(TrainResult(run=RunRef(uri=rundir.uri, name=name), checkpoint=named))
        os.utime(storage / name / ".step" / "result.json", (then, then))
    return rundir


def test_a_runs_checkpoints_are_listed_with_metrics_and_why_they_stay(tmp_path: Path) -> None:
    rundir = make_run(tmp_path)
    pin(str(tmp_path / "run" / NAMES[0]), by="model digits version 1")
    first, second, third = checkpoints(rundir)
    assert (first.name, first.metrics, first.kept_for) == (NAMES[0], {"loss": 1.0}, ("a pin",))
    assert (second.state, second.kept_for) == ("complete", ("the result",))
    assert (third.state, third.metrics) == ("unregistered", {})
    listed = CliRunner().invoke(app, ["checkpoints", rundir.uri])
    assert listed.exit_code == 0
    assert all(name[:16] in listed.stdout for name in NAMES)


def test_what_an_old_runs_result_does_not_name_may_go(tmp_path: Path) -> None:
    make_run(tmp_path)
    assert [name for _, name in prunable(Location.of(str(tmp_path)), DAY)] == [NAMES[0], NAMES[2]]
    assert [name for _, name in prunable(Location.of(str(tmp_path)), DAY, also_results=True)] == NAMES


@pytest.mark.parametrize("run", [{"age_days": 0.5}, {"result": False}], ids=["young", "may live"])
def test_a_run_that_is_young_or_may_live_is_left_whole(tmp_path: Path, run: dict[str, float]) -> None:
    make_run(tmp_path, **run)  # type: ignore[arg-type]
    assert list(prunable(Location.of(str(tmp_path)), DAY, also_results=True)) == []


def test_a_run_that_failed_long_ago_may_go(tmp_path: Path) -> None:
    rundir = make_run(tmp_path, result=False)
    rundir.record_end(1, AttemptEnd("user_error"))
    then = time.time() - 2 * 86400
    os.utime(tmp_path / "run" / ".step" / "attempts" / "001.end.json", (then, then))
    assert [name for _, name in prunable(Location.of(str(tmp_path)), DAY)] == NAMES
    rundir.claim(2, "address", "incarnation")
    assert list(prunable(Location.of(str(tmp_path)), DAY)) == [], "it goes on"


def test_a_pinned_checkpoint_stays_also_when_the_pin_comes_last(tmp_path: Path) -> None:
    rundir = make_run(tmp_path)
    found = dict.fromkeys(name for _, name in prunable(Location.of(str(tmp_path)), DAY))
    pin(str(tmp_path / "run" / NAMES[0]), by="another run")
    assert [prune(rundir, name) for name in found] == [False, True]
    assert (tmp_path / "run" / NAMES[0]).is_dir()
    assert not (tmp_path / "run" / NAMES[2]).exists()
    assert [name for _, name in prunable(Location.of(str(tmp_path)), DAY)] == []


def test_runs_within_a_run_go_with_it_but_for_what_its_result_names(tmp_path: Path) -> None:
    outer = make_run(tmp_path)
    child = outer.child("trial-1")
    (tmp_path / "run" / "_children" / "trial-1" / NAMES[0]).mkdir(parents=True)
    (tmp_path / "run" / "_children" / "trial-1" / NAMES[0] / "model").write_text("1")
    assert (child.uri, NAMES[0]) in [(run.uri, name) for run, name in prunable(Location.of(str(tmp_path)), DAY)]


def test_the_command_lists_and_deletes_only_when_told_to(tmp_path: Path) -> None:
    make_run(tmp_path)
    listed = CliRunner().invoke(app, ["prune", str(tmp_path), "--older-than-days", "1"])
    assert listed.stdout.splitlines()[:2] == [str(tmp_path / "run" / name) for name in (NAMES[0], NAMES[2])]
    assert (tmp_path / "run" / NAMES[0]).is_dir()
    deleted = CliRunner().invoke(app, ["prune", str(tmp_path), "--older-than-days", "1", "--delete"])
    assert deleted.exit_code == 0
    assert [path.name for path in (tmp_path / "run").iterdir() if path.name.startswith("ch")] == [NAMES[1]]
