"""Failures that are not accidents: users' exceptions, missing resources, a loop that always dies, nobody waiting."""

import sys
from pathlib import Path
from typing import Any

import pytest

from devtools.chaos import WORKS, Running, Trail, Work, drivers, nothing_left, spec_at, wait_until, work_at
from plugin_core import FailureConfig, LocalCluster, RayCluster, ScalingConfig
from plugin_core.clusters.local_head import Head
from plugin_core.errors import InfrastructureError, StepTimeoutError, UserCodeError
from plugin_core.runs.directory import RunDir
from plugin_core.specs import CheckpointConfig
from plugin_core.supervisor.supervisor import Supervisor, prepare, run_sync

ONE = ScalingConfig(num_workers=1)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_users_exception_ends_the_step_at_once(tmp_path: Path, trail: Trail, cluster: LocalCluster, rank: int) -> None:
    """Worker failures are survived twice, but an exception of the user's code would only be raised again."""
    loop: dict[str, Any] = {"die_rank": rank, "die_at": 4, "die_how": "raise"}
    running = Running(spec_at(tmp_path, trail.file, loop=loop), cluster)
    error = running.error()
    assert isinstance(error, UserCodeError)
    assert error.message == f"worker {rank}: ValueError: the data is bad"
    assert 'raise ValueError("the data is bad")' in error.details
    assert [entry["step"] for entry in trail.entries(rank)] == [0, 1, 2, 3, 4], "nothing was tried again"
    assert running.rundir.receipts() == [1]
    wait_until(lambda: nothing_left(running.rundir.uri, trail))


@pytest.mark.slow
def test_a_loop_that_always_dies_uses_up_both_budgets(tmp_path: Path, trail: Trail, cluster: LocalCluster) -> None:
    loop = {"die_at": 4, "die_how": "exit"}
    spec = spec_at(
        tmp_path,
        trail.file,
        scaling_config=ONE,
        loop=loop,
        limits={"max_attempts": 2},
        run_config={"failure_config": FailureConfig(max_failures=1)},
    )
    running = Running(spec, cluster)
    error = running.error()
    assert isinstance(error, InfrastructureError)
    assert "after 2 attempts (limits.max_attempts)" in error.message
    assert trail.steps() == [0, 1, 2, 3, 4, 3, 4, 3, 4, 3, 4], "two worker groups in each of two attempts"
    assert running.rundir.receipts() == [1, 2]


@pytest.mark.slow
@pytest.mark.usefixtures("pending_does_not_count")
def test_resources_that_never_come_are_named(tmp_path: Path, trail: Trail, head: Head, cluster: LocalCluster) -> None:
    """They would fit on the empty cluster, but somebody else holds them, who takes no turn: here a step that was told that
    nodes come as they are needed."""
    growing = RayCluster(head.address, head.token, python=sys.executable, autoscaling=True)
    holding = Running(spec_at(tmp_path, trail.file, "holder", scaling_config=ONE, loop={"steps": 600}), growing)
    trail.wait_for(1)
    mine = Trail(tmp_path / "mine.jsonl")
    all_four = ScalingConfig(num_workers=4)
    running = Running(spec_at(tmp_path, mine.file, scaling_config=all_four, limits={"scheduling_timeout_s": 6.0}), cluster)
    error = running.error()
    assert isinstance(error, StepTimeoutError)
    assert "no resources within limits.scheduling_timeout_s (6 s)" in error.message
    assert "it needs 4 workers of 1 CPU each; free: 3 of 4 CPUs" in error.message
    assert mine.steps() == []
    wait_until(lambda: nothing_left(running.rundir.uri, mine))
    run_sync(Supervisor(holding.rundir, growing).cancel())
    assert holding.error() is not None


@pytest.mark.slow
@pytest.mark.parametrize("work", WORKS)
def test_the_deadline_holds_when_the_orchestrator_is_gone(
    tmp_path: Path, trail: Trail, cluster: LocalCluster, work: Work
) -> None:
    spec = work_at(work, tmp_path, trail.file, loop={"steps": 600}, limits={"timeout_s": 14.0})
    rundir = run_sync(prepare(spec, cluster))
    run_sync(Supervisor(rundir, cluster).submit())
    wait_until(lambda: rundir.end(1))
    assert rundir.end(1).outcome == "timeout"  # type: ignore[union-attr]
    wait_until(lambda: nothing_left(rundir.uri, trail))


@pytest.mark.slow
def test_a_job_that_nobody_waits_for_ends_after_orphan_timeout(tmp_path: Path, trail: Trail, cluster: LocalCluster) -> None:
    spec = spec_at(tmp_path, trail.file, scaling_config=ONE, loop={"steps": 150}, limits={"orphan_timeout_s": 25.0})
    rundir: RunDir = run_sync(prepare(spec, cluster))
    trail.hold(120)
    run_sync(Supervisor(rundir, cluster).submit())
    # somebody is interested until it trains, however long a busy machine takes to begin
    wait_until(lambda: rundir.show_interest() or trail.steps())
    wait_until(lambda: rundir.end(1))
    assert "no orchestrator followed the run" in rundir.end(1).message  # type: ignore[union-attr]
    wait_until(lambda: not drivers(rundir.uri))
    assert len(trail.steps()) < 150
    trail.release()
    again = Running(spec, cluster)
    assert again.result().metrics["total"] == sum(range(150))
    assert again.rundir.receipts() == [1, 2], "whoever comes back goes on, and waiting for it is interest enough"
    trail.check(150, kills=1)


@pytest.mark.slow
def test_replayed_steps_under_top_k_and_a_fixed_directory_name(tmp_path: Path, trail: Trail, cluster: LocalCluster) -> None:
    """The user asks for one fixed name, keeps two checkpoints, and the loop dies between checkpoints, twice."""
    loop = {"steps": 12, "name": "latest", "die_at": 7, "die_how": "raise"}
    run_config = {"checkpoint_config": CheckpointConfig(num_to_keep=2)}
    first = Running(spec_at(tmp_path, trail.file, scaling_config=ONE, loop=loop, run_config=run_config), cluster)
    for _ in range(2):
        assert isinstance(Running(first.spec, cluster).error(), UserCodeError)
    assert isinstance(first.error(), UserCodeError)
    assert trail.entries()[-1]["first"] == 6
    names = sorted(path.name for path in Path(first.rundir.uri).glob("latest_*"))
    assert names == ["latest_a001_000001", "latest_a001_000002"]
