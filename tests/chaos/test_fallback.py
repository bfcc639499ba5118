"""Two clusters for one run: the first is lost, cut off or full, and the second goes on; never both."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from devtools.chaos import (
    WORKS,
    Proxy,
    Running,
    Trail,
    Work,
    drivers,
    kill,
    kill_all,
    nothing_left,
    spec_at,
    wait_until,
    work_at,
)
from devtools.ray_heads import OwnHead
from plugin_core import FallbackCluster, LocalCluster, ScalingConfig
from plugin_core.clusters import jobs_api
from plugin_core.supervisor.supervisor import Supervisor, run_sync

ONE = ScalingConfig(num_workers=1)


@pytest.mark.slow
@pytest.mark.parametrize("work", WORKS)
def test_the_first_cluster_dies_and_the_second_goes_on(
    tmp_path: Path, trail: Trail, own_head: Callable[..., OwnHead], cluster: LocalCluster, work: Work
) -> None:
    spot = own_head(num_cpus=2)
    spec = work_at(work, tmp_path, trail.file)
    trail.hold(5)
    running = Running(spec, FallbackCluster([spot.cluster(), cluster], after_s=3.0))
    trail.wait_for(5)
    kill_all(spot.processes())
    trail.release()
    result = running.result()
    assert result.run.attempt == 2
    receipts = [running.rundir.receipt(attempt) for attempt in (1, 2)]
    assert [receipt and receipt.cluster for receipt in receipts] == [spot.address, cluster.identity]
    trail.check(12, kills=1, every=3 if work == "training" else 1)
    assert any("moving on to a local Ray head" in text for text in running.texts())
    wait_until(lambda: nothing_left(running.rundir.uri, trail))


@pytest.mark.slow
def test_the_first_cluster_is_cut_off_and_comes_back_too_late(
    tmp_path: Path,
    trail: Trail,
    own_head: Callable[..., OwnHead],
    cluster: LocalCluster,
    proxy: Callable[[str], Proxy],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its driver stands still meanwhile, so its heartbeat is silent. When it wakes up, the run is elsewhere."""
    monkeypatch.setattr(jobs_api, "REQUEST_TIMEOUT_S", 3.0)
    spot = own_head(num_cpus=2)
    gate = proxy(spot.address)
    spec = spec_at(tmp_path, trail.file, scaling_config=ONE, limits={"heartbeat_ttl_s": 5.0}, loop={"steps": 60})
    there = spot.cluster(f"http://127.0.0.1:{gate.port}")
    running = Running(spec, FallbackCluster([there, cluster], after_s=3.0))
    before = trail.wait_for(4)["pid"]
    (driver,) = drivers(running.rundir.uri)
    kill(driver, signal.SIGSTOP)
    gate.set("black hole")
    wait_until(lambda: any(entry["pid"] != before for entry in trail.entries()))
    gate.set("forward")
    kill(driver, signal.SIGCONT)
    wait_until(lambda: not [process for process in drivers(running.rundir.uri) if process.pid == driver.pid])
    result = running.result()
    assert (result.run.attempt, result.metrics["total"]) == (2, sum(range(60)))
    mine = [entry["step"] for entry in trail.entries() if entry["pid"] != before]
    assert mine == sorted(set(mine)), "the second attempt was never disturbed"
    assert running.rundir.end(1) is None, "the first wrote nothing more"
    wait_until(lambda: nothing_left(running.rundir.uri, trail))


@pytest.mark.slow
def test_the_first_cluster_is_full(
    tmp_path: Path, trail: Trail, own_head: Callable[..., OwnHead], cluster: LocalCluster
) -> None:
    spot = own_head(num_cpus=1)
    holding = Running(spec_at(tmp_path, trail.file, "holder", scaling_config=ONE, loop={"steps": 600}), spot.cluster())
    trail.wait_for(1)
    mine = Trail(tmp_path / "mine.jsonl")
    running = Running(
        spec_at(tmp_path, mine.file, scaling_config=ONE, limits={"max_attempts": 1}),
        FallbackCluster([spot.cluster(), cluster], after_s=4.0),
    )
    assert running.result().run.attempt == 2
    told = "\n".join(running.texts())
    assert "attempt 2: the step got no resources within after_s (4 s): it needs 1 CPU; free: 0 of 1 CPU; ahead: ho" in told
    assert "\nmoving on to a local Ray head\n" in told
    mine.check(12, kills=0)
    run_sync(Supervisor(holding.rundir, spot.cluster()).cancel())
    assert holding.error() is not None
