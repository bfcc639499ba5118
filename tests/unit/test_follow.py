"""What an engine is told of a run: decisions, reports and the job's log, each once."""

import asyncio
import json
from pathlib import Path

import pytest

from plugin_core import run
from plugin_core.rundir import RunDir
from plugin_core.supervisor import Event, Supervisor, prepare, run_sync
from plugin_core.testing import FakeCluster
from tests.unit.fake_steps import spec_at


def test_log_reports_and_decisions_are_told(tmp_path: Path) -> None:
    events: list[Event] = []
    with FakeCluster() as cluster:
        run(spec_at(tmp_path), cluster, events.append)
    assert [event.text for event in events if event.kind == "log"] == ["a line of the fake job"]
    assert events[0].text == "submit the next attempt: nothing has run yet"


def test_a_reader_that_moves_to_another_process_is_told_nothing_twice_and_misses_nothing(tmp_path: Path) -> None:
    """A trigger is cancelled and made again elsewhere, while the journal grows."""
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


def test_a_listener_that_fails_misses_an_event_and_the_step_goes_on(tmp_path: Path) -> None:
    told = []

    def broken(event: Event) -> None:
        told.append(event.kind)
        raise IndexError("list index out of range")

    with FakeCluster() as cluster:
        assert run(spec_at(tmp_path), cluster, broken).run.attempt == 1
    assert {"state", "log"} <= set(told)


@pytest.mark.parametrize("log", ["", "\n", "\n\n\n"])
def test_empty_lines_of_a_log_are_no_event(tmp_path: Path, log: str) -> None:
    told: list[Event] = []
    with FakeCluster(log=log) as cluster:
        run(spec_at(tmp_path), cluster, told.append)
    assert [event for event in told if event.kind == "log"] == []
