"""The driver obeys the run directory, even if nobody is alive to send it a stop."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plugin_core.driver import attempt as driver
from plugin_core.driver import watchdog
from plugin_core.errors import (
    EXIT_NOT_SHARED,
    TERMINATED,
    FencedError,
    InfrastructureError,
    RayTrainWorkflowsError,
    StepCancelledError,
    StepTimeoutError,
    StorageError,
)
from plugin_core.runs import timings
from plugin_core.runs.directory import AttemptEnd, Heartbeat, RunDir
from plugin_core.specs import Limits, RunConfig, TrainSpec
from plugin_core.storage.location import Location

LOOP = "devtools.steps:counting_loop"


class Watched:
    """A watch on attempt 1 of a run; `stopped` is what it stopped the driver with."""

    def __init__(self, tmp_path: Path, attempt: int = 1, signals: int | None = None, **limits: float):
        self.rundir = RunDir.at(str(tmp_path / "run"))
        self.rundir.claim(attempt, "address", "incarnation")
        self.stopped: list[RayTrainWorkflowsError] = []
        self.called = threading.Event()
        self.watch = watchdog.Watch(self.rundir, attempt, Limits(**limits), self._stop, signals)

    def _stop(self, error: RayTrainWorkflowsError) -> None:
        self.stopped.append(error)
        self.called.set()


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timings, "BEAT_S", 0.02)


def test_a_cancel_that_only_storage_records_stops_the_driver(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    with watched.watch:
        watched.rundir.cancel()
        assert watched.called.wait(30)
    assert isinstance(watched.stopped[0], StepCancelledError)


def test_the_phases_are_recorded_when_they_change_and_with_their_times(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    before = time.time()
    with watched.watch:
        for phase in ("fitting the preprocessor", "training", "training"):
            watched.watch.enter(phase)
        while len(watched.rundir.phases(1)) < 2:
            time.sleep(0.01)
        version = watched.rundir.attempts().of(1, "phases")
        for beats in (5, 10):
            while (watched.rundir.heartbeat(1) or Heartbeat(0, "")).counter < beats:
                time.sleep(0.01)
        assert watched.rundir.attempts().of(1, "phases") == version, "it is written only when it changes"
    told = watched.rundir.phases(1)
    assert [phase.phase for phase in told] == ["fitting the preprocessor", "training"]
    assert before <= told[0].time <= told[1].time <= time.time()


def test_a_higher_attempt_stops_the_driver(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    with watched.watch:
        watched.rundir.claim(2, "elsewhere", "other")
        assert watched.called.wait(30)
    assert isinstance(watched.stopped[0], FencedError)


def test_the_deadline_ends_the_driver_too_and_earlier_attempts_count(tmp_path: Path) -> None:
    Watched(tmp_path).rundir.record_end(1, AttemptEnd("infrastructure", elapsed_s=3600.0))
    watched = Watched(tmp_path, attempt=2, timeout_s=3600.0)
    with watched.watch:
        assert watched.called.wait(30)
    assert isinstance(watched.stopped[0], StepTimeoutError)


def test_the_time_of_an_attempt_that_was_killed_counts_up_to_its_last_heartbeat(tmp_path: Path) -> None:
    rundir = RunDir.at(str(tmp_path / "run"))
    rundir.beat(1, Heartbeat(900, "running", 1800.0))
    rundir.beat(2, Heartbeat(900, "running", 1799.0))
    rundir.record_end(2, AttemptEnd("cancelled"))
    watched = Watched(tmp_path, attempt=3, timeout_s=3600.0)
    watched.watch.look()
    rundir.beat(2, Heartbeat(901, "running", 1801.0))
    watched = Watched(tmp_path, attempt=3, timeout_s=3600.0)
    with pytest.raises(StepTimeoutError, match=r"limits.timeout_s \(3600 s\)"):
        watched.watch.look()


def test_the_heartbeat_moves_and_unreachable_storage_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched, beats, away = Watched(tmp_path), threading.Event(), [True]
    beat = RunDir.beat

    def sometimes(self: RunDir, *arguments: object) -> None:
        if away[0]:
            away[0] = False
            raise StorageError("the storage is away")
        beat(self, *arguments)  # type: ignore[arg-type]
        if arguments[1].counter > 5:  # type: ignore[attr-defined]
            beats.set()

    monkeypatch.setattr(RunDir, "beat", sometimes)
    with watched.watch:
        assert beats.wait(30)
    assert watched.stopped == []
    heartbeat = watched.rundir.heartbeat(1)
    assert heartbeat is not None
    assert heartbeat.counter > 5


def test_a_heartbeat_is_one_listing_and_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched, asked, beats = Watched(tmp_path, orphan_timeout_s=3600.0), [], threading.Event()
    for name in ("read_since", "versions", "is_file", "write"):
        monkeypatch.setattr(Location, name, counted(getattr(Location, name), asked))
    beat = RunDir.beat

    def some(self: RunDir, *arguments: object) -> None:
        beat(self, *arguments)  # type: ignore[arg-type]
        if len(asked) > 10:
            beats.set()

    monkeypatch.setattr(RunDir, "beat", some)
    with watched.watch:
        assert beats.wait(30)
    assert asked[:6] == ["versions attempts", "write 001.beat.json"] * 3


def counted(then: Callable[..., Any], asked: list[str]) -> Callable[..., Any]:
    def call(place: Location, *args: Any) -> Any:
        asked.append(f"{then.__name__} {place.name}")
        return then(place, *args)

    return call


def test_a_driver_without_a_receipt_says_that_the_path_is_not_shared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert driver.main(str(tmp_path / "run"), 1, "nonce") == EXIT_NOT_SHARED
    assert "the path is not shared with the cluster" in capsys.readouterr().err


def test_a_driver_of_another_submission_of_the_same_attempt_does_not_run(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    assert driver.main(watched.rundir.uri, 1, "another nonce") == FencedError.exit_code
    assert watched.rundir.end(1) is None
    assert watched.rundir.heartbeat(1) is None


def test_the_copies_of_the_users_modules_are_on_the_path_for_the_attempt_alone(tmp_path: Path) -> None:
    """If they stayed, they would hide the user's own package from every later step of the process."""
    run_config = RunConfig(name="run", storage_path=str(tmp_path))
    rundir = RunDir.of(spec := TrainSpec(framework="python", train_loop_per_worker=LOOP, run_config=run_config))
    rundir.write_spec(spec)
    rundir.claim(1, "address", "incarnation")
    during: list[str] = []

    def connect(runtime_env: dict[str, Any]) -> None:
        during.extend(entry for entry in sys.path if Path(entry, "devtools", "steps.py").is_file())
        raise InfrastructureError("no Ray here")

    with pytest.raises(InfrastructureError, match="no Ray here"):
        driver.run_attempt(rundir, 1, connect, lambda error, elapsed_s: None)
    assert "raytrain-scratch-" in during[0]
    assert during[0] not in sys.path


def test_a_sigterm_stops_the_driver_at_once_and_is_recorded_as_what_it_is(tmp_path: Path) -> None:
    readable, writable = os.pipe()
    watched = Watched(tmp_path, signals=readable)
    with watched.watch:
        os.write(writable, b"\x0f")
        assert watched.called.wait(30)
    assert watched.stopped[0].outcome == TERMINATED


def test_a_driver_that_nobody_waits_for_stops(tmp_path: Path) -> None:
    watched = Watched(tmp_path, orphan_timeout_s=0.1)
    watched.rundir.show_interest()
    with watched.watch:
        assert watched.called.wait(30)
    assert isinstance(watched.stopped[0], InfrastructureError)
    assert "no orchestrator followed the run" in watched.stopped[0].message


def test_a_process_that_hangs_at_exit_says_where_and_ends_itself() -> None:
    code = "import atexit, time; from plugin_core.driver import attempt as driver; driver.timings.EXIT_S = 0.5"
    code += "; atexit.register(time.sleep, 3600)"
    done = subprocess.run([sys.executable, "-c", f"{code}; driver.leave(0)"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "Timeout" in done.stderr
