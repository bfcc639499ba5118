"""Checkpoints on the workers' nodes: what a lost worker, driver, node or head costs, and what damage does."""

import contextlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from devtools.chaos import Running, Trail, drivers, kill, kill_head, nothing_left, spec_at, wait_until
from devtools.ray_heads import OwnHead
from devtools.servers import environment
from plugin_core import CheckpointConfig, LocalCluster, LocalTier, ScalingConfig
from plugin_core.clusters import local_head

pytestmark = pytest.mark.slow

STEPS, STORED = 16, 6


def spec_of(tmp_path: Path, trail: Trail, **fields: Any) -> Any:
    """A checkpoint at each step, of which every sixth goes to storage; held at step 9."""
    trail.hold(9)
    tier = LocalTier(storage_every=STORED, folder=str(tmp_path / "nodes"))
    return spec_at(
        tmp_path / "storage",
        trail.file,
        run_config={"checkpoint_config": CheckpointConfig(local_tier=tier), **fields.pop("run_config", {})},
        loop={"steps": STEPS, "every": 1},
        **fields,
    )


def parts(tmp_path: Path, step: int | None = None) -> list[Path]:
    """The folders of the whole parts on all nodes, or those of the checkpoint of a step."""
    found = sorted((tmp_path / "nodes").glob("*/*/*/*/0*"))
    return [part for part in found if step is None or json.loads((part / "state.json").read_text())["step"] == step]


def node_of(part: Path) -> str:
    return part.parents[2].name


def check(running: Running, trail: Trail, lost: int) -> Any:
    """No more than so many steps were repeated, and storage has the last checkpoint."""
    result = running.result()
    assert set(trail.steps()) == set(range(STEPS)), "no step was left out"
    assert trail.repeated() <= lost, trail.steps()
    assert result.metrics["total"] == sum(range(STEPS))
    assert result.reports >= STEPS
    with result.checkpoint.to_ray().as_directory() as folder:
        assert '"step": 15' in Path(folder, "state.json").read_text()
    return result


def test_a_lost_worker_resumes_from_its_node(tmp_path: Path, trail: Trail, own_head: Callable[..., OwnHead]) -> None:
    head = own_head(num_cpus=3)
    spec = spec_of(tmp_path, trail)
    trail.hold(4)
    running = Running(spec, head.cluster())
    kill(trail.wait_for(4)["pid"])
    trail.wait_for_process(2)
    trail.hold(10)
    kill(wait_until(lambda: next((e for e in trail.entries(1) if e["step"] == 10), None))["pid"])
    trail.release()
    check(running, trail, 2)
    stored = [name for name in os.listdir(running.rundir.location.path) if name.startswith("checkpoint_a")]
    assert len(stored) == 3, f"the 6th, the 12th and the last: {stored}"
    assert any("which the nodes kept" in text for text in running.texts("phase")), running.texts("phase")
    wait_until(lambda: nothing_left(running.rundir.uri, trail))
    assert parts(tmp_path) == [], "nothing is left on the node"


def test_a_lost_driver_resumes_from_the_node(tmp_path: Path, trail: Trail, own_head: Callable[..., OwnHead]) -> None:
    head = own_head(num_cpus=3)
    running = Running(spec_of(tmp_path, trail, scaling_config=ScalingConfig(num_workers=1)), head.cluster())
    trail.wait_for(9)
    (driver,) = drivers(running.rundir.uri)
    kill(driver)
    trail.release()
    result = check(running, trail, 1)
    assert result.run.attempt == 2
    wait_until(lambda: nothing_left(running.rundir.uri, trail))
    assert parts(tmp_path) == []


#: Two workers on two nodes.
APART = ScalingConfig(num_workers=2, placement_strategy="STRICT_SPREAD")


def of_rank_0(nodes: list[list[psutil.Process]], pid: int) -> list[psutil.Process]:
    """The processes of the node on which a worker runs."""
    return next(node for node in nodes if psutil.Process(pid).ppid() in {process.pid for process in node})


def test_a_lost_node_resumes_from_its_peer(tmp_path: Path, trail: Trail, own_head: Callable[..., OwnHead]) -> None:
    """The node with the only part is lost, and another one takes its place."""
    head = own_head(num_cpus=0)
    nodes = [head.add_node(num_cpus=1) for _ in range(3)]
    spec = spec_of(tmp_path, trail, scaling_config=APART)
    running = Running(spec, head.cluster())
    pid = trail.wait_for(9)["pid"]
    wait_until(lambda: len(parts(tmp_path, 8)) == 2)
    head.remove_node(of_rank_0(nodes, pid))
    trail.release()
    check(running, trail, 1)
    assert running.causes() == ["node_lost"]
    assert any("which the nodes kept" in text for text in running.texts("phase")), running.texts("phase")
    wait_until(lambda: nothing_left(running.rundir.uri, trail))


def test_a_peer_that_lags_holds_nothing_up(tmp_path: Path, trail: Trail, own_head: Callable[..., OwnHead]) -> None:
    """It stands still. The training goes on, and a lost node then costs what storage does not have."""
    head = own_head(num_cpus=0)
    nodes = [head.add_node(num_cpus=1) for _ in range(3)]
    running = Running(spec_of(tmp_path, trail, scaling_config=APART), head.cluster())
    wait_until(lambda: len(parts(tmp_path, 1)) == 2)
    for process in head.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            if "_Receiver" in " ".join(process.cmdline()):
                process.send_signal(signal.SIGSTOP)
    pid = trail.wait_for(9)["pid"]
    assert len(parts(tmp_path, 8)) == 1, "the peer does not have it"
    head.remove_node(of_rank_0(nodes, pid))
    trail.release()
    check(running, trail, 9 - STORED + 1)
    wait_until(lambda: nothing_left(running.rundir.uri, trail))


def test_a_lost_head_resumes_from_storage(tmp_path: Path, trail: Trail) -> None:
    with environment({"RAYTRAIN_HOME": str(tmp_path / "home")}):
        spec = spec_of(tmp_path, trail, scaling_config=ScalingConfig(num_workers=1))
        running = Running(spec, LocalCluster(num_cpus=2))
        try:
            trail.wait_for(9)
            wait_until(lambda: any("is on storage" in text for text in running.texts("phase")))
            kill_head()
            trail.release()
            check(running, trail, 9 - STORED + 1)
        finally:
            local_head.stop()
    assert parts(tmp_path) == [], "what the lost head's node kept is gone too"


def flip_a_byte(part: Path) -> None:
    file = part / "state.json"
    data = bytearray(file.read_bytes())
    data[-2] ^= 1
    file.write_bytes(data)


def test_a_damaged_copy_is_not_used(tmp_path: Path, trail: Trail, own_head: Callable[..., OwnHead]) -> None:
    """A byte of the node's newest copy is another one: its peer's is taken. Then the peer's too: the one before is."""
    head = own_head(num_cpus=0)
    for _ in range(2):
        head.add_node(num_cpus=1)
    running = Running(spec_of(tmp_path, trail, scaling_config=APART), head.cluster())
    pid = trail.wait_for(9)["pid"]
    wait_until(lambda: len(parts(tmp_path, 8)) == 2)
    ours = min(parts(tmp_path, 8), key=lambda part: part.stat().st_mtime_ns)
    flip_a_byte(ours)
    kill(pid)
    again = trail.wait_for(9, times=2)
    assert again["first"] == 9, "the peer's copy was taken"
    for part in parts(tmp_path, 8):
        if node_of(part) != node_of(ours):
            flip_a_byte(part)
    kill(again["pid"])
    assert trail.wait_for(8, times=4)["first"] == 8, "the checkpoint before"
    trail.release()
    check(running, trail, 4)
    warnings = [text for text in running.texts("phase") if "cannot be used" in text]
    assert len(warnings) >= 2, running.texts("phase")
    assert all("CRC-32" in text for text in warnings), warnings
