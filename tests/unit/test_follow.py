"""What a listener gets from a run: decisions, reports and the job's log, each once."""

import asyncio
import json
from pathlib import Path

import pytest

from plugin_core import RunRef, TrainResult, run
from plugin_core.clusters.fake import FakeCluster
from plugin_core.errors import InfrastructureError, UserCodeError
from plugin_core.runs.directory import RunDir
from plugin_core.specs import Limits
from plugin_core.supervisor import kept_rest, timings
from plugin_core.supervisor.supervisor import Event, Supervisor, prepare, run_sync
from tests.support.fake_steps import spec_at
from tests.support.kept_logs import keep_text


def test_the_listener_gets_log_reports_and_decisions(tmp_path: Path) -> None:
    events: list[Event] = []
    with FakeCluster() as cluster:
        run(spec_at(tmp_path), cluster, events.append)
    assert [event.text for event in events if event.kind == "log"] == ["a line of the fake job"]
    assert events[0].text == "submitting attempt 1"


def test_a_reader_that_moves_to_another_process_gets_every_event_exactly_once(tmp_path: Path) -> None:
    """A trigger is cancelled and recreated elsewhere while the journal grows."""
    told: list[Event] = []

    async def followed(rundir: RunDir, cluster: FakeCluster, reader: str, until: int) -> None:
        reached = asyncio.Event()

        def hear(event: Event) -> None:
            told.append(event)
            kinds = [each.kind for each in told]
            if kinds.count("report") == until and "log" in kinds:
                reached.set()

        supervisor = Supervisor(rundir, cluster, since_attempt=0, listener=hear, reader=reader)
        following = asyncio.create_task(supervisor.run())
        await reached.wait()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    def report(rundir: RunDir, number: int) -> None:
        lines = [{"attempt": 1, "time": float(n), "report": n, "metrics": {}} for n in range(number + 1)]
        rundir.step.child("journal/001-0001.jsonl").write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))

    with FakeCluster(plays=["hang"]) as cluster:
        rundir = run_sync(prepare(spec_at(tmp_path), cluster))
        run_sync(Supervisor(rundir, cluster).submit())
        for number, reader in enumerate(("try 1", "try 1", "try 1")):
            report(rundir, number)
            run_sync(followed(rundir, cluster, reader, number + 1))
        assert [event.data["report"] for event in told if event.kind == "report"] == [0, 1, 2]
        assert [event.text for event in told if event.kind == "log"] == ["a line of the fake job"]
        told.clear()
        run_sync(followed(rundir, cluster, "try 2", 3))
    assert [event.data["report"] for event in told if event.kind == "report"] == [0, 1, 2]


def test_a_failing_listener_misses_an_event_but_the_step_continues(tmp_path: Path) -> None:
    told = []

    def broken(event: Event) -> None:
        told.append(event.kind)
        raise IndexError("list index out of range")

    with FakeCluster() as cluster:
        assert run(spec_at(tmp_path), cluster, broken).run.attempt == 1
    assert {"state", "log"} <= set(told)


@pytest.mark.parametrize("log", ["", "\n", "\n\n\n"])
def test_empty_log_lines_are_not_events(tmp_path: Path, log: str) -> None:
    told: list[Event] = []
    with FakeCluster(log=log) as cluster:
        run(spec_at(tmp_path), cluster, told.append)
    assert [event for event in told if event.kind == "log"] == []


def test_reports_and_log_are_complete_even_if_the_api_was_down_when_the_run_ended(tmp_path: Path) -> None:
    """The result is visible without the cluster: what storage has is shown at once, the log when the API is back."""
    told: list[Event] = []

    async def followed(rundir: RunDir, cluster: FakeCluster) -> None:
        away = asyncio.Event()

        def hear(event: Event) -> None:
            told.append(event)
            if "cannot be queried" in event.text:
                away.set()
            if event.kind == "report" and event.data["report"] == 4:
                cluster.answering = True

        following = asyncio.create_task(Supervisor(rundir, cluster, since_attempt=0, listener=hear).run())
        await away.wait()
        lines = [{"attempt": 1, "time": float(n), "report": n, "metrics": {}} for n in range(5)]
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        rundir.step.child("journal/001-0001.jsonl").write(data)
        cluster.log = "a line of the fake job\nthe last but one\nthe result: printed after result.json"
        rundir.write_result(TrainResult(run=RunRef(uri=rundir.uri, name="run", attempt=1)))
        cluster.jobs = dict.fromkeys(cluster.jobs, "SUCCEEDED")
        await following

    with FakeCluster(plays=["hang"]) as cluster:
        rundir = run_sync(prepare(spec_at(tmp_path), cluster))
        run_sync(Supervisor(rundir, cluster).submit())
        cluster.answering = False
        run_sync(followed(rundir, cluster))
    assert [event.data["report"] for event in told if event.kind == "report"] == [0, 1, 2, 3, 4]
    lines = [line for event in told if event.kind == "log" for line in event.text.splitlines()]
    assert lines == cluster.log.splitlines()


def test_the_log_of_a_run_that_failed_while_the_api_was_down_is_shown_once_it_is_back(tmp_path: Path) -> None:
    told: list[Event] = []
    with FakeCluster(plays=["user_error"]) as cluster:
        rundir = run_sync(prepare(spec_at(tmp_path), cluster))

        def hear(event: Event) -> None:
            told.append(event)
            cluster.answering = cluster.answering or event.text.startswith("failed: ")

        run_sync(Supervisor(rundir, cluster).submit())
        cluster.answering = False
        with pytest.raises(UserCodeError):
            run_sync(Supervisor(rundir, cluster, since_attempt=0, listener=hear).run())
    assert [event.text for event in told if event.kind == "log"] == ["a line of the fake job"]


def test_an_unavailable_end_of_the_log_is_noted_in_one_line_and_the_result_is_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timings, "LEAVE_S", 1.0)
    told: list[Event] = []
    with FakeCluster(plays=["linger"]) as cluster:
        rundir = run_sync(prepare(spec_at(tmp_path), cluster))

        def hear(event: Event) -> None:
            told.append(event)
            cluster.answering = False

        run_sync(Supervisor(rundir, cluster).submit())
        assert run_sync(Supervisor(rundir, cluster, listener=hear, reader="try 1").run()).run.attempt == 1
    said = [event.text for event in told if "may be missing" in event.text]
    assert len(said) == 1
    assert "returned 500" in said[0]


@pytest.mark.parametrize("listens", [True, False])
def test_a_driver_that_hangs_at_exit_is_stopped_and_the_result_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listens: bool
) -> None:
    monkeypatch.setattr(timings, "STOP_S", 0.5)
    told: list[Event] = []
    with FakeCluster(plays=["linger"]) as cluster:
        assert run(spec_at(tmp_path), cluster, told.append if listens else None).run.attempt == 1
        assert list(cluster.jobs.values()) == ["STOPPED"]
    assert any("its process does not exit" in event.text for event in told) is listens


def test_an_existing_result_is_returned_without_querying_the_cluster(tmp_path: Path) -> None:
    told: list[Event] = []
    with FakeCluster() as cluster:
        run(spec_at(tmp_path), cluster)
        cluster.answering = False
        run(spec_at(tmp_path), cluster, told.append)
    assert [event.kind for event in told] == ["outcome"]


# ---- logs that the run directory keeps


def log_lines(told: list[Event]) -> list[str]:
    return [line for event in told if event.kind == "log" for line in event.text.splitlines()]


def test_the_rest_of_a_log_is_shown_from_the_run_directory_if_its_cluster_is_gone_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that was shown live is repeated, and the line that says that the end may be missing is not needed."""
    monkeypatch.setattr(timings, "LEAVE_S", 1.0)
    told: list[Event] = []
    with FakeCluster(plays=["hang"], log="live 1\nlive 2\n") as cluster:
        rundir = run_sync(prepare(spec_at(tmp_path), cluster))

        def hear(event: Event) -> None:
            told.append(event)
            if event.kind == "log" and cluster.answering:
                keep_text(rundir, "live 1\nlive 2\n\x1b[1mkept 3\x1b[0m\nkept 4")
                rundir.write_result(TrainResult(run=RunRef(uri=rundir.uri, name="run", attempt=1)))
                cluster.answering = False

        assert run_sync(Supervisor(rundir, cluster, listener=hear).run()).run.attempt == 1
    assert log_lines(told) == ["live 1", "live 2", "kept 3", "kept 4"]
    states = [event.text for event in told if event.kind == "state"]
    assert not any("may be missing" in text for text in states)
    (said,) = [text for text in states if "from the run directory" in text]
    assert "returned 500" in said


@pytest.mark.parametrize("max_attempts", [1, 2])
def test_what_a_lost_cluster_cannot_show_is_shown_before_the_next_attempt_or_the_error(
    tmp_path: Path, max_attempts: int
) -> None:
    told: list[Event] = []
    with FakeCluster(plays=["hang"], log="live\n") as cluster:
        limits = Limits(heartbeat_ttl_s=0.2, max_attempts=max_attempts)
        rundir = run_sync(prepare(spec_at(tmp_path, limits=limits), cluster))

        def hear(event: Event) -> None:
            told.append(event)
            if event.kind == "log" and cluster.session_name == "session_fake_1":
                keep_text(rundir, "live\nits last words\n")
                cluster.session_name, cluster.log, cluster.plays = "session_fake_2", "the next one\n", ["succeed"]
                cluster.jobs.clear()

        following = Supervisor(rundir, cluster, listener=hear)
        if max_attempts == 2:
            assert run_sync(following.run()).run.attempt == 2
        else:
            with pytest.raises(InfrastructureError):
                run_sync(following.run())
    assert log_lines(told)[:2] == ["live", "its last words"]
    assert log_lines(told)[2:] == (["the next one"] if max_attempts == 2 else [])


def test_a_reader_that_moves_gets_the_kept_rest_once(tmp_path: Path) -> None:
    told: list[Event] = []
    with FakeCluster(plays=["hang"], log="live\n") as cluster:
        rundir = run_sync(prepare(spec_at(tmp_path, limits=Limits(heartbeat_ttl_s=0.2, max_attempts=1)), cluster))

        def hear(event: Event) -> None:
            told.append(event)
            if event.kind == "log" and cluster.jobs:
                keep_text(rundir, "live\nits last words\n")
                cluster.session_name = "session_fake_2"
                cluster.jobs.clear()

        for _ in range(2):
            with pytest.raises(InfrastructureError):
                run_sync(Supervisor(rundir, cluster, since_attempt=0, listener=hear, reader="try 1").run())
    assert log_lines(told) == ["live", "its last words"]


def test_of_a_kept_log_that_is_too_long_the_end_is_shown_and_a_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_rest, "SHOWN", 100)
    rundir = RunDir.at(str(tmp_path / "run"))
    keep_text(rundir, "".join(f"line {number}\n" for number in range(100)))
    rest = run_sync(kept_rest.rest_of(rundir, 1, 0))
    assert rest is not None
    assert rest.text.startswith("… 0.0 MB of the log not shown; `raytrain logs ")
    assert rest.text.splitlines()[1:] == [f"line {number}" for number in range(88, 100)]
    assert rest.position == 790
    assert run_sync(kept_rest.rest_of(rundir, 2, 0)) is None
