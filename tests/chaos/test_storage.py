"""Storage that throttles, is full, or holds a snapshot that is broken."""

import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from devtools.chaos import Proxy, Running, Trail, drivers, kill, spec_at
from devtools.servers import s3_endpoint
from plugin_core import LocalCluster, ScalingConfig, TrainSpec, run
from plugin_core.clusters.local_head import Head
from plugin_core.driver.fenced_filesystem import SNAPSHOT
from plugin_core.errors import StorageFullError
from plugin_core.runs.directory import RunDir
from plugin_core.runs.journal import read_reports
from tests.support.clouds import AZURE_VARIABLE, GCS_VARIABLE

ONE = ScalingConfig(num_workers=1)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [5, 30])
def test_s3_answers_503_for_a_while_as_checkpoints_are_written(
    s3: str, trail: Trail, cluster: LocalCluster, proxy: Callable[[str], Proxy], seconds: int
) -> None:
    gate = proxy(s3_endpoint(s3))
    storage = f"s3://runs/throttled-{seconds}?endpoint_override=127.0.0.1:{gate.port}&scheme=http"
    running = Running(spec_at(storage, trail.file, scaling_config=ONE), cluster)
    trail.wait_for(4)
    gate.set(503)
    back = threading.Timer(seconds, gate.set, ["forward"])
    back.start()
    result = running.result()
    back.join()
    assert gate.requests_answered > 3
    assert result.metrics["total"] == sum(range(12))
    assert result.run.attempt == 1
    assert trail.steps() == list(range(12)), "the training was never begun again"


def goes_on_after_its_driver_is_killed(spec: TrainSpec, cluster: LocalCluster, trail: Trail) -> Any:
    trail.hold(5)
    running = Running(spec, cluster)
    trail.wait_for(5)
    (driver,) = drivers(running.rundir.uri)
    kill(driver)
    trail.release()
    result = running.result()
    assert result.metrics["total"] == sum(range(12))
    assert result.run.attempt == 2
    trail.check(12, kills=1)
    return result


@pytest.mark.slow
def test_a_run_on_s3fs_continues_after_its_driver_is_killed(s3: str, trail: Trail, cluster: LocalCluster) -> None:
    spec = spec_at(f"s3fs://runs/by fsspec?endpoint_url={s3_endpoint(s3)}", trail.file)
    goes_on_after_its_driver_is_killed(spec, cluster, trail)


@pytest.mark.slow
@pytest.mark.parametrize("cloud", ["azure", "gcs"])
def test_a_run_on_another_cloud_continues_after_its_driver_is_killed(
    request: pytest.FixtureRequest, trail: Trail, head: Head, cloud: str
) -> None:
    storage: str = request.getfixturevalue(cloud)
    # the job gets what the URI names
    variables = {name: os.environ[name] for name in (AZURE_VARIABLE, GCS_VARIABLE) if f"${name}" in storage}
    spec = spec_at(storage, trail.file, scaling_config=ONE)
    result = goes_on_after_its_driver_is_killed(spec, LocalCluster(env_vars=variables), trail)
    with result.checkpoint.as_directory() as folder:
        assert Path(folder, "state.json").exists()


@pytest.mark.slow
def test_a_full_disk_is_reported_and_the_last_checkpoint_is_kept(
    tmp_path: Path, trail: Trail, cluster: LocalCluster
) -> None:
    """The second checkpoint's file is a link to /dev/full, on which every write finds no space left."""
    spec = spec_at(tmp_path, trail.file, scaling_config=ONE)
    full = tmp_path / "run" / "checkpoint_a001_000002"
    trail.hold(0)
    running = Running(spec, cluster)
    # only now: a number that is taken when the loop begins is passed over
    trail.wait_for(0)
    full.mkdir()
    (full / "state.json").symlink_to("/dev/full")
    trail.release()
    error = running.error()
    assert isinstance(error, StorageFullError)
    assert "the storage is full" in error.message
    assert "the last complete checkpoint is kept" in error.message
    assert running.rundir.receipts() == [1], "trying again cannot cure it"
    result = run(spec, cluster)
    assert result.metrics["total"] == sum(range(12))
    assert [entry["first"] for entry in trail.entries()][-1] == 3, "with space again it goes on from the last checkpoint"


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param("torn, the newest directory half uploaded", marks=pytest.mark.slow),
        pytest.param("missing", marks=pytest.mark.slow),
        pytest.param("lists an absent directory", marks=pytest.mark.slow),
    ],
)
def test_training_resumes_whatever_state_rays_snapshot_is_in(
    tmp_path: Path, trail: Trail, cluster: LocalCluster, broken: str
) -> None:
    loop = {"steps": 9, "die_at": 7, "die_how": "raise"}
    running = Running(spec_at(tmp_path, trail.file, scaling_config=ONE, loop=loop), cluster)
    assert "the data is bad" in str(running.error())
    snapshot = tmp_path / "run" / SNAPSHOT
    resumes_at = 6
    if broken == "missing":
        snapshot.unlink()
    elif broken == "lists an absent directory":
        (newest,) = (tmp_path / "run").glob("checkpoint_a001_000002")
        newest.rename(tmp_path / "moved away")
        resumes_at = 3
    else:
        snapshot.write_bytes(snapshot.read_bytes()[:-100])
        (tmp_path / "run" / "checkpoint_a001_000003").mkdir()
        (tmp_path / "run" / "checkpoint_a001_000003" / "state.json").write_text('{"st')
    again = Running(running.spec, cluster)
    assert "the data is bad" in str(again.error()), "the loop still raises, which is not what this is about"
    assert trail.entries()[-1]["first"] == resumes_at
    assert any("it was rebuilt with" in text for text in again.texts("log")), "and the job's log says what was done"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["local", "s3"])
def test_a_flipped_byte_of_the_newest_checkpoint_costs_one_interval(
    tmp_path: Path, trail: Trail, cluster: LocalCluster, request: pytest.FixtureRequest, kind: str
) -> None:
    """Names and sizes are as they were, so only whoever reads it finds out: the workers that are to resume."""
    storage = str(tmp_path) if kind == "local" else request.getfixturevalue("s3")
    trail.hold(7)
    running = Running(spec_at(storage, trail.file, "flipped", scaling_config=ONE), cluster)
    pid = trail.wait_for(7)["pid"]
    newest = running.rundir.location.child("checkpoint_a001_000002", "state.json")
    data = newest.read()
    assert data is not None
    newest.write(data[:-1] + bytes([data[-1] ^ 1]))
    kill(pid)
    trail.release()
    result = running.result()
    assert result.metrics["total"] == sum(range(12))
    resumed = next(entry["first"] for entry in trail.entries() if entry["pid"] != pid)
    assert resumed == 3, "the checkpoint before"
    assert (result.run.attempt, running.causes()) == (2, ["worker_lost", "storage"])
    told = running.texts("phase") + running.texts()
    assert any("checkpoint_a001_000002 is damaged (state.json fails its CRC-32 check)" in text for text in told), told


@pytest.mark.slow
def test_a_journal_that_cannot_be_written_for_a_while_loses_nothing(
    tmp_path: Path, trail: Trail, cluster: LocalCluster
) -> None:
    trail.hold(220)
    running = Running(spec_at(tmp_path, trail.file, scaling_config=ONE, loop={"steps": 240}), cluster)
    trail.wait_for(4)
    journal = tmp_path / "run" / ".step" / "journal"
    journal.rename(tmp_path / "journal")
    journal.write_text("a file where the folder should be")
    trail.wait_for(210)  # more than a minute later
    journal.unlink()
    (tmp_path / "journal").rename(journal)
    trail.release()
    assert running.result().metrics["total"] == sum(range(240))
    steps = [entry["metrics"]["step"] for entry in read_reports(running.rundir)]
    assert steps == list(range(2, 240, 3)), "every report is there, in order"
    assert trail.steps() == list(range(240))


def test_a_run_directory_of_schema_version_1_is_read(tmp_path: Path) -> None:
    """A run that the first version wrote, from the fixture."""
    archive = Path(__file__).parent / "fixtures" / "run-schema-1.tar.gz"
    subprocess.run(["tar", "-xzf", str(archive), "-C", str(tmp_path)], check=True)
    rundir = RunDir.at(str(tmp_path / "run"))
    assert rundir.read_record()["schema"] == 1
    assert rundir.read_spec().limits.heartbeat_ttl_s == 6.0
    assert rundir.receipts() == [1, 2]
    assert [rundir.end(attempt).outcome for attempt in (1, 2)] == ["infrastructure", "succeeded"]  # type: ignore[union-attr]
    assert rundir.heartbeat(2).counter >= 1  # type: ignore[union-attr]
    assert rundir.intent().cancel_through == 0
    result = rundir.result()
    assert result is not None
    assert (result.metrics["total"], result.run.attempt) == (15, 2)
    assert [e["metrics"]["step"] for e in read_reports(rundir)] == [2, 5]
