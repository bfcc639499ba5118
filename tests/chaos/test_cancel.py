"""Cancel, in every phase of a run, twice at once, and while nobody can reach the cluster."""

import itertools
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from devtools.chaos import WORKS, Proxy, Running, Trail, Work, drivers, nothing_left, spec_at, wait_until, work_at
from plugin_core import LocalCluster, RayCluster, ScalingConfig, run
from plugin_core.clusters.local_head import Head
from plugin_core.errors import StepCancelledError
from plugin_core.supervisor.cancel import acancel
from plugin_core.supervisor.supervisor import run_sync

ONE = ScalingConfig(num_workers=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("phase", "work"),
    [*itertools.product(["pending", "starting", "training"], WORKS), ("uploading", "training")],
)
def test_cancel(tmp_path: Path, trail: Trail, cluster: LocalCluster, phase: str, work: Work) -> None:
    """Twice at once; when it returns nothing of the run is alive, and a later call continues where it was."""
    # a server that takes the connection and does not answer: the job is pending until it is closed, which Ray waits for
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = {"working_dir": f"https://127.0.0.1:{server.getsockname()[1]}/code.zip"}
        cancel_in(phase, work, tmp_path, trail, cluster, code if phase == "pending" else {}, server)


def cancel_in(
    phase: str,
    work: Work,
    tmp_path: Path,
    trail: Trail,
    cluster: LocalCluster,
    runtime_env: dict[str, Any],
    server: socket.socket,
) -> None:
    loop = {"steps": 200 if phase != "uploading" else 6, "bytes": 2**28 if phase == "uploading" else 0}
    spec = work_at(work, tmp_path, trail.file, loop=loop, runtime_env=runtime_env)
    if phase == "uploading":
        trail.hold(3)
    running = Running(spec, cluster)
    wait_until(lambda: running.rundir.receipts() == [1])
    download = server.accept()[0] if phase == "pending" else None
    if phase == "starting":
        wait_until(lambda: drivers(running.rundir.uri))
    elif phase == "training":
        trail.wait_for(4)
    elif phase == "uploading":
        wait_until(lambda: list(Path(running.rundir.uri).glob("checkpoint_*/weights.bin")))
    said: list[str] = []
    both = [threading.Thread(target=lambda: said.append(run_sync(acancel(running.rundir, cluster)))) for _ in range(2)]
    for thread in both:
        thread.start()
    wait_until(lambda: running.rundir.intent().cancel_through == 1)
    server.close()
    if download is not None:
        download.close()
    for thread in both:
        thread.join(300)
    assert said == ["cancelled", "cancelled"]
    assert nothing_left(running.rundir.uri, trail), "when cancel returns, the workers and what they held are free"
    assert isinstance(running.error(), StepCancelledError)
    assert running.rundir.end(1).outcome == "cancelled"  # type: ignore[union-attr]


@pytest.mark.slow
def test_a_call_after_a_cancel_wants_the_run_again(tmp_path: Path, trail: Trail, cluster: LocalCluster) -> None:
    running = Running(spec_at(tmp_path, trail.file, scaling_config=ONE, loop={"steps": 40}), cluster)
    trail.wait_for(4)
    assert run_sync(acancel(running.rundir, cluster)) == "cancelled"
    again = Running(running.spec, cluster)
    assert again.result().metrics["total"] == sum(range(40))
    assert again.rundir.receipts() == [1, 2]
    trail.check(40, kills=1)


@pytest.mark.slow
def test_cancel_after_the_end(tmp_path: Path, trail: Trail, cluster: LocalCluster) -> None:
    spec = spec_at(tmp_path, trail.file, scaling_config=ONE, loop={"steps": 3})
    running = Running(spec, cluster)
    first = running.result()
    assert run_sync(acancel(running.rundir, cluster)) == "finished"
    assert run(spec, cluster) == first


@pytest.mark.slow
@pytest.mark.parametrize("work", WORKS)
def test_the_driver_obeys_a_cancel_while_the_api_is_away(
    tmp_path: Path, trail: Trail, head: Head, proxy: Callable[[str], Proxy], work: Work
) -> None:
    gate = proxy(head.address)
    cluster = RayCluster(f"http://127.0.0.1:{gate.port}", head.token, python="python")
    running = Running(work_at(work, tmp_path, trail.file, loop={"steps": 500}), cluster)
    trail.wait_for(3)
    gate.set(500)
    assert run_sync(acancel(running.rundir, cluster)) == "cancelled"
    wait_until(lambda: nothing_left(running.rundir.uri, trail))
    assert running.rundir.end(1).outcome == "cancelled"  # type: ignore[union-attr]
    assert isinstance(running.error(), StepCancelledError)
