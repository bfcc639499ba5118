"""`raytrain logs`: from the cluster while it answers, else from the run directory, in plain text."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools.written_runs import Raytrain, write_run
from plugin_core.cli import logs
from plugin_core.clusters.fake import FakeCluster
from plugin_core.runs.directory import AttemptEnd, RunDir
from plugin_core.runs.kept_log import DRIVER, log_folder
from plugin_core.supervisor.supervisor import Supervisor, prepare, run_sync
from tests.support.fake_steps import spec_at
from tests.support.kept_logs import keep_text

GONE = ("--address", "http://127.0.0.1:1")


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "EVERY_S", 0.05)
    monkeypatch.setattr(logs, "LAST_S", 0.3)


@pytest.fixture
def fake() -> Iterator[FakeCluster]:
    with FakeCluster(plays=["hang"], log="\x1b[31mlive\x1b[0m\n") as cluster:
        yield cluster


def submitted(tmp_path: Path, cluster: FakeCluster) -> RunDir:
    rundir = run_sync(prepare(spec_at(tmp_path), cluster))
    run_sync(Supervisor(rundir, cluster).submit())
    return rundir


def test_the_log_comes_from_the_cluster_while_it_answers(tmp_path: Path, fake: FakeCluster, raytrain: Raytrain) -> None:
    rundir = submitted(tmp_path, fake)
    keep_text(rundir, "kept\n")
    code, out, err = raytrain("logs", rundir.uri, "--address", fake.address)
    assert (code, out.strip()) == (0, "live")
    assert "the log of attempt 1, from its cluster" in err


def test_a_log_survives_its_cluster_and_a_line_says_where_it_is_from(storage: str, raytrain: Raytrain) -> None:
    keep_text(write_run(storage, "digits"), "\x1b]0;title\x07one\nthe last")
    code, out, err = raytrain("logs", "digits", *GONE)
    assert (code, out) == (0, "one\nthe last")
    assert "the log of attempt 1, as the run directory keeps it: cluster: got http://127.0.0.1:1" in err


def test_the_log_of_another_cluster_than_the_embedded_one_is_not_asked_for_there(
    tmp_path: Path, fake: FakeCluster, raytrain: Raytrain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYTRAIN_HOME", str(tmp_path / "home"))
    rundir = submitted(tmp_path, fake)
    keep_text(rundir, "kept\n")
    code, out, err = raytrain("logs", rundir.uri)
    assert (code, out) == (0, "kept\n")
    assert "only fake has the live one; see --address" in err


def test_an_attempt_and_a_rank_can_be_chosen(storage: str, raytrain: Raytrain) -> None:
    rundir = write_run(storage, "digits", "failed")
    rundir.claim(2, "http://127.0.0.1:1", "session")
    for attempt in (1, 2):
        keep_text(rundir, f"driver {attempt}\n", attempt)
        for rank in (0, 11):
            keep_text(rundir, f"rank {rank} of {attempt}\n", attempt, f"rank-{rank:03}")
    assert raytrain("logs", "digits", *GONE)[1] == "driver 2\n"
    assert raytrain("logs", "digits", "--attempt", "1", *GONE)[1] == "driver 1\n"
    assert raytrain("logs", "digits", "--rank", "11")[1] == "rank 11 of 2\n"
    code, out, err = raytrain("logs", "digits", "--attempt", "1", "--rank", "0")
    assert (code, out) == (0, "rank 0 of 1\n")
    assert "the log of rank 0 in attempt 1, as the run directory keeps it" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--attempt", "3"), "attempt: got 3; expected one of 1"),
        (("--rank", "2"), "rank: got 2; expected, for attempt 1 of"),
        (("--rank", "2"), "one of 0"),
        (GONE, "which keeps no log of attempt 1; cluster: got http://127.0.0.1:1"),
    ],
)
def test_what_is_not_there_is_refused_in_a_sentence(
    storage: str, raytrain: Raytrain, arguments: tuple[str, ...], said: str
) -> None:
    keep_text(write_run(storage, "digits"), "x\n", 1, "rank-000")
    code, out, err = raytrain("logs", "digits", *arguments)
    assert (code, out) == (2, "")
    assert said in err


def test_a_live_log_is_followed_to_the_end_of_the_job(tmp_path: Path, fake: FakeCluster, raytrain: Raytrain) -> None:
    rundir = submitted(tmp_path, fake)

    def end() -> None:
        fake.log += "the last line"
        fake.jobs = dict.fromkeys(fake.jobs, "FAILED")

    later = threading.Timer(0.5, end)
    later.start()
    code, out, _ = raytrain("logs", rundir.uri, "--follow", "--address", fake.address)
    later.join()
    assert (code, out) == (0, "live\nthe last line")


def test_following_goes_on_in_the_run_directory_when_the_cluster_dies_and_repeats_nothing(
    tmp_path: Path, fake: FakeCluster, raytrain: Raytrain
) -> None:
    rundir = submitted(tmp_path, fake)

    def die() -> None:
        keep_text(rundir, "live\nits last words\n")
        rundir.record_end(1, AttemptEnd("infrastructure"))
        fake.answering = False

    later = threading.Timer(0.5, die)
    later.start()
    code, out, err = raytrain("logs", rundir.uri, "--follow", "--address", fake.address)
    later.join()
    assert (code, out) == (0, "live\nits last words\n")
    assert "as the run directory keeps it" in err


def test_a_kept_log_is_followed_to_the_end_of_the_attempt(storage: str, raytrain: Raytrain) -> None:
    rundir = write_run(storage, "digits", "training")

    def go_on(text: str) -> None:
        keep_text(rundir, text, 1, "rank-000")

    def end() -> None:
        rundir.record_end(1, AttemptEnd("user_error"))
        go_on("one\ntwo\nthree\n")  # its processes write the rest a moment later

    timers = [
        threading.Timer(0.2, go_on, ["one\n"]),
        threading.Timer(0.4, go_on, ["one\ntwo\n"]),
        threading.Timer(0.6, end),
    ]
    for timer in timers:
        timer.start()
    code, out, _ = raytrain("logs", "digits", "--rank", "0", "--follow")
    for timer in timers:
        timer.join()
    assert (code, out) == (0, "one\ntwo\nthree\n")


def test_a_run_within_a_run_shows_its_own_ranks_and_the_log_of_the_job(storage: str, raytrain: Raytrain) -> None:
    search = write_run(storage, "search")
    keep_text(search, "the job's\n")
    trial = search.child("trial-1")
    trial.write_child_spec(search.read_spec())
    keep_text(trial, "the trial's\n", 1, "rank-000")
    assert raytrain("logs", trial.uri, "--rank", "0")[1] == "the trial's\n"
    assert raytrain("logs", trial.uri, *GONE)[1] == "the job's\n"
    assert log_folder(search, 1, DRIVER).names()


def test_ctrl_c_leaves_a_log_that_is_followed_and_the_run_alone(tmp_path: Path, fake: FakeCluster) -> None:
    rundir = submitted(tmp_path, fake)
    keep_text(rundir, "so far\n")
    command = [sys.executable, "-m", "plugin_core.cli", "logs", rundir.uri, "--follow", *GONE]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "so far\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in err
    assert rundir.intent().cancel_through == 0
