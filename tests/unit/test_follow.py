"""What a listener gets from a run: decisions, reports and the job's log, each once."""

import asyncio
import json
from pathlib import Path

import pytest

from plugin_core import RunRef, TrainResult, run
from plugin_core.clusters.fake import FakeCluster
from plugin_core.errors import UserCodeError
from plugin_core.runs.directory import RunDir
from plugin_core.supervisor import timings
from plugin_core.supervisor.supervisor import Event, Supervisor, prepare, run_sync
from tests.support.fake_steps import spec_at


def test_the_listener_gets_log_reports_and_decisions(tmp_path: Path) -> None:
    events: list[Event] = []
    with FakeCluster() as cluster:
        run(spec_at(tmp_path), cluster, events.append)
    assert [event.text for event in events if event.kind == "log"] == ["a line of the fake job"]
    assert events[0].text == "submitting attempt 1: nothing has run yet"


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
    assert [event.text for event in told] == ["finished: the run has a result"]
