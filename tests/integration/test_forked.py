"""Workers on the embedded head are copies of its fork server, and are what they would be without it."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from devtools.chaos import wait_until
from devtools.servers import command_of
from plugin_core import LocalCluster, RunConfig, ScalingConfig, TrainSpec, run
from plugin_core.clusters import local_head
from plugin_core.clusters.local_head import Head

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only there the embedded head has a fork server")
SERVER = "plugin_core.ray_internals.fork_server"


def loop(config: dict[str, Any]) -> None:
    import sys

    imported = "torch" in sys.modules
    import os
    from pathlib import Path

    import psutil
    import ray.train
    import torch

    parent = psutil.Process(os.getppid())
    told = {"forked": int("plugin_core.ray_internals.fork_server" in parent.cmdline())}
    told |= {"imported": int(imported), "threads": torch.get_num_threads(), "nice": psutil.Process().nice()}
    told |= {"killed_first": int(Path("/proc/self/oom_score_adj").read_text()), "given": int(os.environ.get("GIVEN", "0"))}
    ray.train.report(told)


def told(folder: Path, cluster: LocalCluster, **fields: Any) -> dict[str, Any]:
    spec = TrainSpec(
        framework="python",
        train_loop_per_worker=loop,
        run_config=RunConfig(name="run", storage_path=str(folder)),
        **fields,
    )
    return run(spec, cluster, progress=False).metrics


@pytest.mark.slow
@pytest.mark.parametrize("cpus", [1, 2])
def test_a_worker_has_what_it_would_have_without_a_fork_server(tmp_path: Path, cluster: LocalCluster, cpus: int) -> None:
    """torch's threads are a worker's CPUs, although it was imported before those were known."""
    each = ScalingConfig(num_workers=1, resources_per_worker={"CPU": cpus})
    forked = told(tmp_path / "forked", cluster, scaling_config=each)
    started = told(tmp_path / "started", cluster, scaling_config=each, runtime_env={"env_vars": {"GIVEN": "1"}})
    assert forked == {**started, "forked": 1, "imported": 1, "given": 0}
    assert (started["forked"], started["imported"], started["given"], started["threads"]) == (0, 0, 1, cpus)


@pytest.mark.slow
def test_a_head_whose_fork_server_was_killed_goes_on_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYTRAIN_HOME", str(tmp_path / "home"))
    head = local_head.ensure()
    try:
        (server,) = servers(head)
        assert told(tmp_path / "before", LocalCluster())["forked"] == 1
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: not servers(head))
        assert told(tmp_path / "after", LocalCluster())["forked"] == 0
    finally:
        local_head.stop()
    assert head.processes() == []


@pytest.mark.slow
def test_a_head_without_preload_has_no_fork_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYTRAIN_HOME", str(tmp_path / "home"))
    try:
        assert told(tmp_path, LocalCluster(preload=False))["forked"] == 0
        head = local_head.current()
        assert head is not None
        assert servers(head) == []
    finally:
        local_head.stop()


def servers(head: Head) -> list[psutil.Process]:
    """Without its copies."""
    found = [process for process in head.processes() if SERVER in command_of(process)]
    return [process for process in found if SERVER not in command_of(process.parent())]
