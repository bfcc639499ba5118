"""What retention keeps, and what it deletes."""

import os
import time
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest
from typer.testing import CliRunner

from plugin_core import CheckpointRef, EvaluationResult, RunRef, TrainResult
from plugin_core.cli import app
from plugin_core.runs.directory import AttemptEnd, RunDir
from plugin_core.runs.journal import JournalWriter
from plugin_core.runs.pins import pin
from plugin_core.runs.retention import abort_uploads, checkpoints, prunable, prune
from plugin_core.specs import parse_spec
from plugin_core.storage.location import Location

DAY = timedelta(days=1)
NAMES = ["checkpoint_a001_000001", "checkpoint_a001_000002", "checkpoint_a001_000003"]


def make_run(storage: Path, name: str = "run", reported: int = 2, result: bool = True, age_days: float = 2) -> RunDir:
    """A run with three checkpoints, this many of them reported, and a result that names the second."""
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


def test_prune_deletes_what_an_old_runs_result_does_not_name(tmp_path: Path) -> None:
    make_run(tmp_path)
    (tmp_path / ".raytrain-storage.json").write_text("the proof of this storage")
    (tmp_path / "notes.txt").write_text("a file beside the runs")
    assert abort_uploads(Location.of(str(tmp_path)), DAY) == 0
    assert [name for _, name in prunable(Location.of(str(tmp_path)), DAY)] == [NAMES[0], NAMES[2]]
    assert [name for _, name in prunable(Location.of(str(tmp_path)), DAY, also_results=True)] == NAMES


@pytest.mark.parametrize("run", [{"age_days": 0.5}, {"result": False}], ids=["young", "may live"])
def test_a_run_that_is_young_or_may_be_alive_is_left_alone(tmp_path: Path, run: dict[str, float]) -> None:
    make_run(tmp_path, **run)  # type: ignore[arg-type]
    assert list(prunable(Location.of(str(tmp_path)), DAY, also_results=True)) == []


def test_a_run_that_failed_long_ago_may_be_deleted(tmp_path: Path) -> None:
    rundir = make_run(tmp_path, result=False)
    rundir.record_end(1, AttemptEnd("user_error"))
    then = time.time() - 2 * 86400
    os.utime(tmp_path / "run" / ".step" / "attempts" / "001.end.json", (then, then))
    assert [name for _, name in prunable(Location.of(str(tmp_path)), DAY)] == NAMES
    rundir.claim(2, "address", "incarnation")
    assert list(prunable(Location.of(str(tmp_path)), DAY)) == [], "it goes on"


def test_a_pinned_checkpoint_stays_when_the_pin_comes_last_too(tmp_path: Path) -> None:
    rundir = make_run(tmp_path)
    found = dict.fromkeys(name for _, name in prunable(Location.of(str(tmp_path)), DAY))
    pin(str(tmp_path / "run" / NAMES[0]), by="another run")
    assert [prune(rundir, name) for name in found] == [False, True]
    assert (tmp_path / "run" / NAMES[0]).is_dir()
    assert not (tmp_path / "run" / NAMES[2]).exists()
    assert [name for _, name in prunable(Location.of(str(tmp_path)), DAY)] == []


def test_nested_runs_are_deleted_with_their_run_except_what_its_result_names(tmp_path: Path) -> None:
    outer = make_run(tmp_path)
    child = outer.child("trial-1")
    (tmp_path / "run" / "_children" / "trial-1" / NAMES[0]).mkdir(parents=True)
    (tmp_path / "run" / "_children" / "trial-1" / NAMES[0] / "model").write_text("1")
    assert (child.uri, NAMES[0]) in [(run.uri, name) for run, name in prunable(Location.of(str(tmp_path)), DAY)]


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """Another path to the storage `runs`, as a mount on another host has it."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "mnt").symlink_to(tmp_path / "runs")
    return tmp_path / "mnt"


def test_prune_keeps_what_a_result_names_by_another_path_to_the_same_storage(tmp_path: Path, linked: Path) -> None:
    make_run(linked)
    deleted = CliRunner().invoke(app, ["prune", str(tmp_path / "runs"), "--older-than-days", "1", "--delete"])
    assert deleted.exit_code == 0
    assert sorted(path.name for path in (tmp_path / "runs" / "run").glob("checkpoint*")) == [NAMES[1]]
    assert checkpoints(RunDir.at(str(tmp_path / "runs" / "run")))[0].kept_for == ("the result",)


def test_prune_keeps_what_a_result_names_with_the_options_of_the_uri_in_another_order(s3: str) -> None:
    location = Location.of(s3).child("prune")
    split = urlsplit(location.uri)
    other = urlunsplit(split._replace(query="&".join(reversed(split.query.split("&")))))
    assert other != location.uri
    rundir = RunDir.at(Location(other).child("run").uri)
    rundir.write_spec(parse_spec({"framework": "python", "train_loop_per_worker": "a:b"}).with_name("run", other))
    for name in NAMES:
        rundir.location.child(name, "model").write(b"1")
    named = CheckpointRef(uri=rundir.location.child(NAMES[1]).uri)
    rundir.write_result(TrainResult(run=RunRef(uri=rundir.uri, name="run"), checkpoint=named))
    found = list(prunable(location, timedelta(0)))
    assert [name for _, name in found] == [NAMES[0], NAMES[2]]
    assert all(prune(*each) for each in found)
    assert [name for name in rundir.location.names() if name.startswith("check")] == [NAMES[1]]


def test_prune_keeps_what_the_result_of_another_run_names(tmp_path: Path, linked: Path) -> None:
    make_run(tmp_path / "runs", "trained")
    (tmp_path / "runs" / "alias").symlink_to(tmp_path / "runs" / "trained")
    checked = RunDir.at(str(tmp_path / "runs" / "checked"))
    checked.write_spec(
        parse_spec({"framework": "python", "train_loop_per_worker": "a:b"}).with_name("checked", str(linked))
    )
    named = CheckpointRef(uri=str(linked / "alias" / NAMES[2]))
    run = RunRef(uri=checked.uri, name="checked")
    checked.write_result(
        EvaluationResult(run=run, passed=True, checkpoint=named, compared_to=str(linked / "trained" / NAMES[0]))
    )
    assert list(prunable(Location.of(str(tmp_path / "runs")), DAY)) == []
    assert {name for _, name in prunable(Location.of(str(tmp_path / "runs")), DAY, also_results=True)} == set(NAMES)


def test_a_trials_checkpoint_that_the_searchs_result_names_stays_and_another_trials_of_that_name_goes(
    tmp_path: Path, linked: Path
) -> None:
    outer = make_run(linked, result=False)
    for trial in ("trial-1", "trial-2"):
        (linked / "run" / "_children" / trial / NAMES[0]).mkdir(parents=True)
    named = CheckpointRef(uri=str(linked / "run" / "_children" / "trial-1" / NAMES[0]))
    outer.write_result(TrainResult(run=RunRef(uri=outer.uri, name="run"), checkpoint=named))
    found = [(run.name, name) for run, name in prunable(Location.of(str(tmp_path / "runs")), timedelta(0))]
    assert sorted(found) == [*(("run", name) for name in NAMES), ("trial-2", NAMES[0])]


def test_the_command_lists_and_deletes_only_when_told_to(tmp_path: Path) -> None:
    make_run(tmp_path)
    listed = CliRunner().invoke(app, ["prune", str(tmp_path), "--older-than-days", "1"])
    assert listed.stdout.splitlines()[:2] == [str(tmp_path / "run" / name) for name in (NAMES[0], NAMES[2])]
    assert (tmp_path / "run" / NAMES[0]).is_dir()
    deleted = CliRunner().invoke(app, ["prune", str(tmp_path), "--older-than-days", "1", "--delete"])
    assert deleted.exit_code == 0
    assert [path.name for path in (tmp_path / "run").iterdir() if path.name.startswith("ch")] == [NAMES[1]]
