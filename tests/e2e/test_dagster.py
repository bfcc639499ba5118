"""The Dagster adapter of `example_dagster/`, in processes of Dagster's own: killed, re-attached, terminated."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from devtools.chaos import Trail, nothing_left, spec_at, wait_until
from plugin_core.runs.directory import RunDir

pytest.importorskip("dagster")
pytestmark = pytest.mark.usefixtures("head")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def trail(tmp_path: Path) -> Trail:
    return Trail(tmp_path / "trail.jsonl")


def materialize(tmp_path: Path, log: str) -> subprocess.Popen[bytes]:
    """A process of Dagster's that materializes the asset `run`."""
    (home := tmp_path / "dagster").mkdir(exist_ok=True)
    environment = {**os.environ, "DAGSTER_HOME": str(home), "SPEC": str(tmp_path / "spec.json"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "dagster", "asset", "materialize", "--select", "*", "-m", "tests.e2e.dagster_assets"]
    with (tmp_path / log).open("wb") as file:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=file, start_new_session=True)


def begun(tmp_path: Path, trail: Trail, steps: int) -> RunDir:
    spec = spec_at(tmp_path, trail.file, "run", loop={"steps": steps, "every": 2, "step_s": 0.3})
    (tmp_path / "spec.json").write_text(spec.model_dump_json())
    return RunDir.of(spec)


@pytest.mark.slow
def test_a_process_that_is_killed_leaves_its_job_and_the_next_one_attaches(
    tmp_path: Path, trail: Trail, monkeypatch: pytest.MonkeyPatch
) -> None:
    rundir = begun(tmp_path, trail, 20)
    first = materialize(tmp_path, "first.log")
    trail.wait_for(3)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    second = materialize(tmp_path, "second.log")
    assert second.wait(300) == 0, (tmp_path / "second.log").read_text()
    assert rundir.receipts() == [1], "no second job"
    result = rundir.result()
    assert result is not None
    assert result.metrics["total"] == sum(range(20))
    from dagster import AssetKey, DagsterInstance

    # of Dagster's own records: its processes do not print all of their events
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "dagster"))
    with DagsterInstance.get() as instance:
        event = instance.get_latest_materialization_event(AssetKey("run"))
    assert event is not None
    assert event.asset_materialization is not None
    assert event.asset_materialization.metadata["run"].value == rundir.uri


@pytest.mark.slow
def test_a_run_that_is_terminated_cancels_its_job(tmp_path: Path, trail: Trail) -> None:
    rundir = begun(tmp_path, trail, 1000)
    process = materialize(tmp_path, "log")
    trail.wait_for(3)
    process.send_signal(signal.SIGINT)
    assert process.wait(600) != 0
    end = rundir.end(1)
    assert end is not None
    assert end.outcome == "cancelled"
    wait_until(lambda: nothing_left(rundir.uri, trail))


@pytest.mark.slow
def test_a_users_exception_fails_the_run_with_its_message(tmp_path: Path, trail: Trail) -> None:
    spec = spec_at(tmp_path, trail.file, "run", loop={"steps": 4, "every": 2, "die_at": 1, "die_how": "raise"})
    (tmp_path / "spec.json").write_text(spec.model_dump_json())
    process = materialize(tmp_path, "log")
    assert process.wait(600) == 1
    assert "UserCodeError: worker 0: ValueError: the data is bad" in (tmp_path / "log").read_text()
