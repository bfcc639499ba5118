"""Nodes with an announced preemption, and workers whose number changes."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from devtools.chaos import Running, Trail, nothing_left, spec_at, wait_until, work_at
from devtools.ray_heads import OwnHead
from plugin_core import ScalingConfig
from plugin_core.errors import StepTimeoutError

pytestmark = pytest.mark.slow


def drain(head: OwnHead, node_id: str, deadline_s: int) -> None:
    """What a cloud's reclaim does through Ray's autoscaler."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "drain-node", f"--address=127.0.0.1:{head.ports[0]}"]
    command += [f"--node-id={node_id}", "--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=reclaimed"]
    command += [f"--deadline-remaining-seconds={deadline_s}"]
    done = subprocess.run(command, env=head.environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_preemption_notice_saves_a_checkpoint_just_in_time(
    tmp_path: Path, trail: Trail, own_head: Callable[..., OwnHead]
) -> None:
    """The loop has no other checkpoint, so what it does not repeat was saved because of the notice."""
    head = own_head(num_cpus=1)
    head.add_node(num_cpus=1)
    spec = spec_at(
        tmp_path,
        trail.file,
        train_loop_per_worker="devtools.loops:noticing",
        scaling_config=ScalingConfig(num_workers=2, placement_strategy="STRICT_SPREAD"),
        loop={"steps": 20, "step_s": 0.3, "until": str(tmp_path / "go")},
    )
    running = Running(spec, head.cluster())
    trail.wait_for(4)
    head.add_node(num_cpus=1)
    drain(head, head.node_ids()[1], 12)
    trail.wait_for_process(2)
    (tmp_path / "go").touch()
    result = running.result()
    saved = [json.loads(line) for line in Path(f"{trail.file}.saved").read_text().splitlines()]
    (for_notice,) = [entry["step"] for entry in saved if entry["came"] and entry["rank"] == 0]
    assert result.metrics["total"] == sum(range(result.metrics["step"] + 1))
    assert (result.run.attempt, running.causes()) == (1, ["preempted"])
    assert trail.entries()[-1]["first"] == for_notice + 1, "the workers began again right behind that checkpoint"
    wait_until(lambda: nothing_left(running.rundir.uri, trail))


@pytest.mark.parametrize("another", [True, False])
def test_a_job_whose_node_is_lost_waits_for_another_one_within_its_limit(
    tmp_path: Path, trail: Trail, own_head: Callable[..., OwnHead], another: bool
) -> None:
    head = own_head(num_cpus=1)
    node = head.add_node(num_cpus=2)
    limits = {"scheduling_timeout_s": 60.0 if another else 3.0}
    trail.hold(3)
    running = Running(work_at("function", tmp_path, trail.file, num_cpus=2, limits=limits), head.cluster())
    trail.wait_for(3)
    head.remove_node(node)
    trail.release()
    if another:
        head.add_node(num_cpus=2)
        assert running.result().run.attempt == 1
        trail.check(12, kills=1, every=1)
    else:
        failed = running.error()
        assert isinstance(failed, StepTimeoutError)
        assert "got no resources within limits.scheduling_timeout_s (3 s): it needs 2 CPUs" in failed.message
    wait_until(lambda: nothing_left(running.rundir.uri, trail))


def test_elastic_workers_survive_a_resize(tmp_path: Path, trail: Trail, own_head: Callable[..., OwnHead]) -> None:
    """One worker at first, two as soon as there is a second node; the steps continue where they were."""
    head = own_head(num_cpus=1)
    spec = spec_at(
        tmp_path,
        trail.file,
        train_loop_per_worker="devtools.loops:noticing",
        scaling_config=ScalingConfig(num_workers=(1, 2), elastic_resize_monitor_interval_s=3.0),
        loop={"steps": 10, "step_s": 0.5, "always": True, "until": str(tmp_path / "go")},
    )
    running = Running(spec, head.cluster())
    trail.wait_for(3)
    head.add_node(num_cpus=1)
    wait_until(lambda: {entry["world"] for entry in trail.entries()} == {1, 2})
    (tmp_path / "go").touch()
    result = running.result()
    assert result.metrics["total"] == sum(range(result.metrics["step"] + 1))
    assert trail.repeated() <= 1, "at the resize at most one interval, here one step, is repeated"
