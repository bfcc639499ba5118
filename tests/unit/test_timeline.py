"""Where the time of a start went, from what a driver and a controller recorded."""

import json
from pathlib import Path
from typing import Any

import pytest

from devtools.written_runs import Raytrain, write_run
from plugin_core.runs.directory import Phase, RunDir
from plugin_core.runs.timeline import Part, seconds, timeline

T = 1_790_000_000.0
PHASES = [
    Phase(T, "starting Python and importing", shown=False),
    Phase(T + 2, "connecting to Ray", shown=False),
    Phase(T + 2.5, "starting", shown=False),
    Phase(T + 3, "training"),
    Phase(T + 30, "collecting"),
]
ENTRIES: list[dict[str, Any]] = [
    {"time": T + 3.25, "phase": "scheduling"},
    {"time": T + 6, "phase": "setting_up"},
    {"time": T + 6.5, "phase": "running", "workers": 2},
    {"time": T + 7, "phase": "looping"},
    {"time": T + 7, "phase": "running"},
    {"time": T + 9, "report": 1, "metrics": {}},
    {"time": T + 20, "phase": "scheduling"},
]
PARTS = {
    "starting Python and importing": 2.0,
    "connecting to Ray": 0.5,
    "starting": 0.5,
    "starting Ray Train's controller": 0.25,
    "starting the workers' processes": 2.75,
    "setting up the workers": 1.0,
    "the loop, until its first report": 2.0,
}


@pytest.fixture
def rundir(storage: str) -> RunDir:
    return write_run(storage, "run", "training")


def write(rundir: RunDir, entries: list[dict[str, Any]], attempt: int = 1) -> None:
    lines = [json.dumps({"attempt": attempt, **entry}).encode() + b"\n" for entry in entries]
    rundir.show_phases(attempt, PHASES)
    rundir.step.child(f"journal/{attempt:03}-0000001.jsonl").write(b"".join(lines))


def test_the_parts_of_a_start_follow_each_other_until_the_first_report(rundir: RunDir) -> None:
    write(rundir, ENTRIES)
    parts = timeline(rundir, 1)
    assert seconds(parts) == PARTS
    assert sum(part.seconds or 0 for part in parts) == 9.0, "no second is missing, and none counts twice"
    assert [part.began for part in parts] == sorted(part.began for part in parts)


def test_a_part_that_lasts_has_no_seconds_yet(rundir: RunDir) -> None:
    write(rundir, ENTRIES[:2])
    parts = timeline(rundir, 1, PHASES[:4])
    assert parts[-1] == Part("setting up the workers", T + 6, None)
    assert "setting up the workers" not in seconds(parts)


def test_an_attempt_of_an_earlier_version_and_damaged_lines_have_no_parts(rundir: RunDir) -> None:
    assert timeline(rundir, 1) == []
    rundir.step.child("journal/001-0000001.jsonl").write(
        b'{"phase": "scheduling", "time": "noon"}\n{"phase": 1}\nnothing\n'
    )
    rundir.show_phases(1, [Phase(float("1e300"), "odd")])
    assert timeline(rundir, 1) == []


def test_raytrain_timeline_shows_the_latest_attempt_or_the_one_that_is_asked_for(
    rundir: RunDir, raytrain: Raytrain
) -> None:
    write(rundir, ENTRIES)
    code, out, _ = raytrain("timeline", "run")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split() == ["SECONDS", "ATTEMPT", "1"]
    assert lines[5].strip().split(maxsplit=2) == ["2.8", "█" * 40, "starting the workers' processes"]
    assert lines[-1].split() == ["9.0", "together"]
    told = json.loads(raytrain("timeline", "run", "--attempt", "1", "--json")[1])
    assert {part["what"]: part["seconds"] for part in told["parts"]} == PARTS


def test_raytrain_timeline_refuses_an_attempt_that_there_is_not(rundir: RunDir, raytrain: Raytrain, tmp_path: Path) -> None:
    code, _, err = raytrain("timeline", "run", "--attempt", "7")
    assert code == 2
    assert "attempt: got 7; expected one of 1" in err
    code, _, err = raytrain("timeline", "run")
    assert (code, err.strip()) == (0, f"attempt 1 of {rundir.uri} recorded no times")
