"""`raytrain` on runs that were written without a cluster: what it lists, finds and refuses."""

import json
import math
import os
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from devtools.written_runs import STATES, Raytrain, write_run
from plugin_core import RunRef, TrainResult, errors
from plugin_core.runs import overview
from plugin_core.runs.directory import AttemptEnd, Heartbeat, RunDir
from plugin_core.runs.overview import SILENT_S, WAITING_S, Overview
from plugin_core.storage.location import Location
from plugin_core.storage.threads import THREADS


def age(path: Path, seconds: float) -> None:
    """As if everything below had been written so many seconds ago."""
    for file in [path, *path.rglob("*")]:
        os.utime(file, (time.time() - seconds,) * 2)


# ---- ls


def test_ls_shows_each_run_with_its_state_progress_attempt_and_age_the_newest_first(
    storage: str, raytrain: Raytrain, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)  # an age in seconds is the same on a slow machine
    for number, state in enumerate(STATES):
        age(Path(write_run(storage, f"of-{state}", state).uri), 3600 * 3 * number if state not in ("training",) else 50)
    code, out, _ = raytrain("ls")
    lines = [re.split(r"\s{2,}", line.strip()) for line in out.splitlines()]
    assert code == 0
    assert lines == [
        ["RUN", "KIND", "STATE", "PROGRESS", "ATTEMPT", "AGE"],
        ["of-waiting", "train", "waiting", "1", "0 s"],
        ["of-training", "train", "training", "3 reports, epoch 2", "1", "50 s"],
        ["of-succeeded", "train", "succeeded", "3 reports, epoch 2", "1", "6 h"],
        ["of-failed", "train", "failed (user_error)", "3 reports, epoch 2", "1", "9 h", "it broke"],
        ["of-cancelled", "train", "cancelled", "3 reports, epoch 2", "1", "12 h", "the run was cancelled"],
    ]


def test_as_many_runs_are_read_at_once_as_a_storage_has_threads(storage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(THREADS, timeout=60)

    def meet(rundir: RunDir) -> Overview:
        together.wait()
        return Overview(rundir.name, rundir.uri, "no run")

    monkeypatch.setattr(overview, "overview", meet)
    for number in range(THREADS):
        Path(storage, f"run-{number}").mkdir()
    assert len(overview.overviews(Location.of(storage))) == THREADS


def states(raytrain: Raytrain, *arguments: str) -> dict[str, str]:
    code, out, err = raytrain("ls", *arguments, "--json")
    assert code == 0, err
    return {run["name"]: run["state"] for run in json.loads(out)}


def test_what_is_damaged_or_no_run_is_a_row_that_says_so(storage: str, raytrain: Raytrain) -> None:
    whole, torn, empty = (write_run(storage, name, "failed") for name in ("whole", "torn", "empty"))
    Path(torn.uri, ".step/attempts/001.end.json").write_text('{"outcome": ')
    Path(empty.uri, ".step/spec.json").write_text("")
    journal = write_run(storage, "odd-journal", "training")
    Path(journal.uri, ".step/journal/001-0000001.jsonl").write_bytes(b"{\n\xff\n5\n")
    Path(storage, "others").mkdir()
    Path(storage, "closed").mkdir()
    Path(storage, "closed", ".step").write_text("a file, which cannot be listed either")
    Path(storage, "notes.txt").write_text("no folder")
    Path(storage, ".hidden").mkdir()
    Path(storage, "_models", "digits").mkdir(parents=True)  # the registry's
    found = states(raytrain)
    expected = {"whole": "failed", "torn": "unreadable", "empty": "unreadable", "closed": "unreadable", "others": "no run"}
    assert found == {**expected, "odd-journal": "training"}
    _, out, _ = raytrain("ls")
    assert "001.end.json is damaged" in out
    assert whole.name in out


@pytest.mark.parametrize("epoch", [10**400, math.nan, math.inf, "7", True, None])
def test_a_counter_that_counts_nothing_is_not_shown(storage: str, raytrain: Raytrain, epoch: Any) -> None:
    rundir = write_run(storage, "odd", "training")
    line = {"attempt": 1, "time": 1.0, "report": 4, "index": 4, "metrics": {"epoch": epoch, "step": 5}}
    Path(rundir.uri, ".step/journal/001-0000002.jsonl").write_text(json.dumps(line) + "\n")
    (run,) = json.loads(raytrain("ls", "--json")[1])
    assert (run["reports"], run["counters"]) == (4, {"step": 5})
    assert "4 reports, step 5" in raytrain("ls")[1]
    assert json.loads(raytrain("status", "odd", "--json")[1])["metrics"]["step"] == 5


def test_a_run_whose_driver_went_silent_is_not_shown_as_training(storage: str, raytrain: Raytrain) -> None:
    lost, late = write_run(storage, "lost", "training"), write_run(storage, "late", "waiting")
    age(Path(lost.uri), SILENT_S + 60)
    age(Path(late.uri), SILENT_S + 60)
    assert states(raytrain) == {"lost": "silent", "late": "waiting"}, "a job may wait for its cluster"
    age(Path(late.uri), WAITING_S + 60)
    assert states(raytrain)["late"] == "silent"


def test_a_cancel_shows_before_and_after_the_driver_obeys_it(storage: str, raytrain: Raytrain) -> None:
    told, gone, never = (write_run(storage, name, "training") for name in ("told", "gone", "never"))
    for rundir in (told, gone):
        rundir.cancel()
    age(Path(gone.uri), SILENT_S + 60)
    write_run(storage, "unsent", "prepared").cancel()
    stopped = write_run(storage, "stopped", "training")
    stopped.cancel()
    stopped.record_end(1, AttemptEnd(errors.TERMINATED))
    never.record_end(1, AttemptEnd(errors.TERMINATED))
    found = states(raytrain)
    assert found.pop("told") == "cancelling"
    assert found.pop("never") == "failed", "a SIGTERM that nobody asked for"
    assert set(found.values()) == {"cancelled"}


def test_a_run_goes_on_after_a_failed_attempt(storage: str, raytrain: Raytrain) -> None:
    rundir = write_run(storage, "again", "failed")
    rundir.claim(2, "http://127.0.0.1:1", "session")
    rundir.beat(2, Heartbeat(1, "restoring"))
    (run,) = json.loads(raytrain("ls", "--json")[1])
    assert (run["state"], run["attempt"], run["active"], run["outcome"]) == ("restoring", 2, True, "")


EVIL = "\x1b]0;title\x07\x1b[31mred\x1b[0m [bold]\u202e\x9b2J"


def test_no_escape_code_of_a_run_reaches_the_terminal(storage: str, raytrain: Raytrain) -> None:
    write_run(storage, "failed", "failed", message=EVIL)
    write_run(storage, "alive", "training").beat(1, Heartbeat(2, EVIL))
    Path(storage, "\x1b[31mname\n2").mkdir()
    for arguments in (("ls",), ("top", "--once"), ("status", "failed"), ("result", "failed"), ("status", "alive")):
        _, out, err = raytrain(*arguments)
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", out + err), arguments
        assert "red [bold]" in out + err or arguments == ("status", "alive")
    assert raytrain("ls", "--json")[1].isascii()
    assert raytrain("result", "failed", "--json")[1].isascii()
    run = RunRef(uri=f"{storage}/alive", name="alive")
    RunDir.at(run.uri).write_result(TrainResult(run=run, metrics={EVIL: 1}, warnings=(EVIL,)))
    code, out, _ = raytrain("result", "alive")
    assert (code, out.isascii(), json.loads(out)["metrics"]) == (0, True, {EVIL: 1})


def test_what_a_run_tells_of_itself_leaves_room_for_the_other_columns(storage: str, raytrain: Raytrain) -> None:
    write_run(storage, "alive", "training").beat(1, Heartbeat(2, "very " * 1000))
    _, out, _ = raytrain("ls")
    assert len(out) < 500
    assert "very very" in out


def test_an_empty_storage_has_no_runs(storage: str, raytrain: Raytrain, monkeypatch: pytest.MonkeyPatch) -> None:
    assert raytrain("ls") == (0, "", f"no runs in {storage}\n")
    assert raytrain("ls", storage, "--json")[1] == "[]\n"
    monkeypatch.setenv("RAY_STORAGE", f"{storage}/yet to come")
    assert raytrain("ls")[0] == 0, "the first run makes it"


# ---- RUN by name


def test_run_is_a_name_in_a_storage_or_a_path(storage: str, raytrain: Raytrain, tmp_path: Path) -> None:
    write_run(storage, "mine")
    write_run(str(tmp_path / "other"), "yours", reports=7)
    for arguments in (("mine",), ("runs/mine",), (f"{storage}/mine",), ("mine", "--storage", storage)):
        code, out, err = raytrain("result", *arguments)
        assert (code, json.loads(out)["reports"]) == (0, 3), err
    assert json.loads(raytrain("result", "yours", "--storage", str(tmp_path / "other"))[1])["reports"] == 7
    os.chdir(tmp_path / "other")
    assert json.loads(raytrain("result", "yours")[1])["reports"] == 7, "a folder here, as ever"
    code, out, err = raytrain("result", "mien")
    assert (code, out) == (2, "")
    assert err == (
        f"SpecError: run: got 'mien'; expected a run directory, or the name of a run in {storage} (did you mean mine?)\n"
    )


@pytest.mark.parametrize("command", ["status", "result", "checkpoints", "logs", "cancel", "track"])
@pytest.mark.parametrize("run", ["none", "./none", "", "../x", "a" * 300])
def test_a_run_that_is_not_there_is_refused_by_each_command(
    storage: str, raytrain: Raytrain, command: str, run: str
) -> None:
    code, out, err = raytrain(command, run)
    assert (code, out, len(err.splitlines())) == (2, "", 1), err
    assert err.startswith(("SpecError: run: got", "SpecError: path: got")), err


# ---- result


@pytest.mark.parametrize(
    ("outcome", "code", "name"),
    [
        ("user_error", 10, "UserCodeError"),
        ("infrastructure", 11, "InfrastructureError"),
        ("timeout", 13, "StepTimeoutError"),
        ("cancelled", 14, "StepCancelledError"),
        ("storage_full", 17, "StorageFullError"),
        ("refused", 2, "SpecError"),
        (errors.TERMINATED, 11, "InfrastructureError"),
    ],
)
def test_the_result_of_a_run_that_failed_is_its_error_and_exits_with_its_code(
    storage: str, raytrain: Raytrain, outcome: str, code: int, name: str
) -> None:
    write_run(storage, "run", "training").record_end(1, AttemptEnd(outcome, "what it said", "Traceback: all"))
    left, out, err = raytrain("result", "run")
    assert (left, out) == (code, "")
    assert err.endswith(f"{name}: what it said\n")
    assert "Traceback: all" in err
    assert f"`raytrain status {storage}/run` shows its attempts" in err
    left, out, _ = raytrain("result", "run", "--json")
    told = json.loads(out)
    assert (left, told["error"], told["exit_code"], told["message"]) == (code, name, code, "what it said")


@pytest.mark.parametrize(("state", "word"), [("training", "training"), ("waiting", "waiting"), ("prepared", "waiting")])
def test_the_result_of_a_run_that_goes_on_says_so(storage: str, raytrain: Raytrain, state: str, word: str) -> None:
    write_run(storage, "run", state)
    code, out, err = raytrain("result", "run")
    assert (code, out) == (2, "")
    assert f"which has no result yet ({word}); expected a finished run" in err


def test_a_run_cancelled_before_it_began_has_that_as_its_error(storage: str, raytrain: Raytrain) -> None:
    write_run(storage, "run", "prepared").cancel()
    assert raytrain("result", "run")[0] == 14


# ---- storages


@pytest.mark.parametrize("command", ["ls", "top", "prune"])
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("runs/mine", "which is a run directory; expected the storage above it, '{storage}'"),
        ("nowhere", "which does not exist; expected a path or URI that holds runs"),
        ("runs/file", "which is a file; expected a folder that holds runs"),
        ("ftp://x", "expected a local path or a URI with scheme"),
    ],
)
def test_what_is_no_storage_is_refused(storage: str, raytrain: Raytrain, command: str, given: str, words: str) -> None:
    write_run(storage, "mine")
    Path(storage, "file").touch()
    code, out, err = raytrain(command, given)
    assert (code, out, len(err.splitlines())) == (2, "", 1), err
    assert err.startswith("SpecError: storage: got")
    assert words.format(storage=storage) in err


@pytest.mark.parametrize("days", ["-3", "nan", "inf", "1e300"])
def test_an_age_that_is_none_is_refused(storage: str, raytrain: Raytrain, days: str) -> None:
    code, out, err = raytrain("prune", storage, "--older-than-days", days)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert f"--older-than-days: got {float(days):g}; expected a number from 0 to 36,500" in err
