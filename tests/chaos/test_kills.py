"""SIGKILL of everything that a run consists of, while it trains."""

import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from devtools.chaos import (
    EVERY,
    WORKS,
    Running,
    Trail,
    Work,
    counting_drivers,
    drivers,
    kill,
    kill_head,
    nothing_left,
    spec_at,
    wait_until,
    work_at,
)
from devtools.ray_heads import OwnHead
from devtools.servers import environment
from plugin_core import FailureConfig, LocalCluster, RunConfig, ScalingConfig, TrainSpec, run
from plugin_core.clusters import local_head


def kill_driver_at(running: Running, trail: Trail, step: int) -> None:
    """Kill the driver while the workers are held at `step`, and keep the hold."""
    trail.hold(step)
    trail.wait_for(step)
    (driver,) = drivers(running.rundir.uri)
    kill(driver)


@pytest.mark.smoke
def test_a_worker_then_the_driver_then_the_head_are_killed_in_one_run(tmp_path: Path, trail: Trail) -> None:
    spec = spec_at(tmp_path, trail.file, loop={"steps": 15}, limits={"heartbeat_ttl_s": 60.0})
    with environment({"RAYTRAIN_HOME": str(tmp_path / "home")}):
        trail.hold(4)
        running = Running(spec, LocalCluster(num_cpus=2))
        try:
            trail.wait_for(4)
            kill(trail.entries(rank=1)[-1]["pid"])
            trail.wait_for_process(2)
            kill_driver_at(running, trail, step=8)
            trail.wait_for_process(3)
            trail.hold(12)
            trail.wait_for(12)
            kill_head()
            trail.release()
            result = running.result()
        finally:
            local_head.stop()
    assert result.metrics == {"step": 14, "total": sum(range(15))}
    assert result.run.attempt == 3, "the worker's death is borne within the attempt, the others each begin a new one"
    trail.check(15, kills=3)
    wait_until(lambda: nothing_left(running.rundir.uri, trail))


@pytest.mark.slow
def test_a_worker_and_the_driver_twice_are_killed_in_one_run(tmp_path: Path, trail: Trail, cluster: LocalCluster) -> None:
    """Ray Train's controller runs in the driver. Ray knows that a killed driver has ended, so its heartbeat, which may be
    silent for a minute here, is not waited for."""
    spec = spec_at(tmp_path, trail.file, loop={"steps": 15}, limits={"heartbeat_ttl_s": 60.0})
    trail.hold(4)
    with counting_drivers(str(tmp_path / "run")):
        running = Running(spec, cluster)
        trail.wait_for(4)
        kill(trail.entries(rank=1)[-1]["pid"])
        trail.wait_for_process(2)
        for number, step in enumerate((8, 12), start=3):
            kill_driver_at(running, trail, step)
            trail.wait_for_process(number)
        trail.release()
        result = running.result()
    assert result.metrics == {"step": 14, "total": sum(range(15))}
    assert result.run.attempt == 3, "the worker's death is borne within the attempt, the driver's begins a new one"
    assert not any("silent" in text for text in running.texts()), running.texts()
    trail.check(15, kills=3)
    wait_until(lambda: nothing_left(running.rundir.uri, trail))


def dies_while_it_saves(config: dict[str, Any]) -> None:
    """Reports one checkpoint; its worker is killed when the first one is half written."""
    from plugin_core.loops.upload import report

    def write(folder: Path) -> None:
        (folder / "model.bin").write_bytes(b"0" * 1000)
        note = Path(config["note"])
        if not note.exists():
            note.write_text(str(folder))
            os.kill(os.getpid(), signal.SIGKILL)

    report({"epoch": 0}, write)


@pytest.mark.slow
def test_a_checkpoint_that_a_killed_worker_was_writing_does_not_stay_on_the_node(
    tmp_path: Path, cluster: LocalCluster
) -> None:
    note = tmp_path / "note"
    spec = TrainSpec(
        framework="python",
        train_loop_per_worker=dies_while_it_saves,
        train_loop_config={"note": str(note)},
        run_config=RunConfig(name="run", storage_path=str(tmp_path), failure_config=FailureConfig(max_failures=1)),
    )
    result = run(spec, cluster)
    assert result.checkpoint is not None
    assert [file.name for file in Path(result.checkpoint.uri).glob("*.bin")] == ["model.bin"]
    folder = Path(note.read_text())
    assert folder.parent.parent == Path(tempfile.gettempdir(), f"raytrain-scratch-{os.getuid()}")
    assert not folder.parent.exists()


@pytest.mark.slow
def test_a_node_is_killed(tmp_path: Path, trail: Trail, own_head: Callable[..., OwnHead]) -> None:
    """Two nodes with one worker each; the one without the driver dies, and a third one takes its place."""
    head = own_head(num_cpus=1)
    second = head.add_node(num_cpus=1)
    scaling = ScalingConfig(num_workers=2, placement_strategy="STRICT_SPREAD")
    trail.hold(5)
    running = Running(spec_at(tmp_path, trail.file, scaling_config=scaling), head.cluster())
    trail.wait_for(5)
    head.remove_node(second)
    head.add_node(num_cpus=1)
    trail.release()
    result = running.result()
    assert result.metrics["total"] == sum(range(12))
    trail.check(12, kills=1)
    wait_until(lambda: nothing_left(running.rundir.uri, trail))


@pytest.mark.slow
@pytest.mark.parametrize("work", WORKS)
def test_the_head_is_killed_and_a_new_one_continues(tmp_path: Path, trail: Trail, work: Work) -> None:
    """The embedded head and everything in it, its keeper too; the same call starts another one and resumes there."""
    with environment({"RAYTRAIN_HOME": str(tmp_path / "home")}):
        cluster = LocalCluster(num_cpus=2)
        trail.hold(5)
        running = Running(work_at(work, tmp_path, trail.file), cluster)
        try:
            trail.wait_for(5)
            first = kill_head()
            trail.release()
            result = running.result()
            second = local_head.current()
            assert second is not None
            assert second.mark != first.mark
        finally:
            local_head.stop()
    assert result.metrics.get("total") == (None if work == "command" else sum(range(12)))
    assert result.run.attempt == 2
    trail.check(12, kills=1, every=EVERY if work == "training" else 1)
    wait_until(lambda: nothing_left(running.rundir.uri, trail))


@pytest.mark.slow
@pytest.mark.parametrize("work", ["function", "command"])
def test_the_process_of_a_job_and_its_driver_are_killed(
    tmp_path: Path, trail: Trail, cluster: LocalCluster, work: Work
) -> None:
    """The process is started again within the attempt, the driver's death begins a new one; each goes on from what was
    saved."""
    spec = work_at(work, tmp_path, trail.file, loop={"steps": 15}, limits={"heartbeat_ttl_s": 60.0})
    trail.hold(4)
    with counting_drivers(str(tmp_path / "run")):
        running = Running(spec, cluster)
        kill(trail.wait_for(4)["pid"])
        trail.wait_for_process(2)
        kill_driver_at(running, trail, step=8)
        trail.wait_for_process(3)
        trail.release()
        result = running.result()
    assert result.run.attempt == 2
    assert result.value == (None if work == "command" else {"step": 14, "total": sum(range(15))})
    trail.check(15, kills=2, every=1)
    assert len({entry["pid"] for entry in trail.entries()}) == 3
    wait_until(lambda: nothing_left(running.rundir.uri, trail))
