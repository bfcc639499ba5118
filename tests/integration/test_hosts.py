"""A Ray of several hosts: their own addresses, nothing shared but an S3 API."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devtools.chaos import Running, wait_until
from devtools.servers import s3_server
from plugin_core import RunConfig, ScalingConfig, TrainSpec, run
from plugin_core.errors import SpecError
from plugin_core.runs.directory import RunDir
from plugin_core.runs.journal import read_reports
from tests.support.hosts import Hosts, available

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(available()), reason=available()),
]


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    # a short path, since Ray's sockets lie below
    with tempfile.TemporaryDirectory(prefix="h-") as folder, Hosts(Path(folder), 3) as hosts:
        yield hosts


@pytest.fixture
def shared(hosts: Hosts, tmp_path: Path) -> Iterator[str]:
    """Storage that all hosts reach: an S3 API on the gateway."""
    with s3_server(tmp_path / "s3.log", hosts.gateway) as uri:
        yield uri


def counting(config: dict[str, Any]) -> None:
    """Counts steps, each with a checkpoint, and reports on which host."""
    import json
    import time
    from pathlib import Path

    import ray.train

    from plugin_core.loops.upload import report

    first = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            first = json.loads(Path(folder, "state.json").read_text())["step"] + 1
    for step in range(first, config["steps"]):
        time.sleep(0.3)

        def write(folder: Path, step: int = step) -> None:
            (folder / "state.json").write_text(json.dumps({"step": step}))

        context = ray.train.get_context()
        host = ray.util.get_node_ip_address()
        report({"step": step, "host": host}, write if context.get_world_rank() == 0 else None)


def spec_at(storage: str, **fields: Any) -> TrainSpec:
    scaling = ScalingConfig(num_workers=2, placement_strategy="STRICT_SPREAD")
    defaults: dict[str, Any] = {"train_loop_config": {"steps": 5}, "scaling_config": scaling, "report_all_ranks": True}
    run_config = RunConfig(name="hosts", storage_path=storage)
    return TrainSpec(framework="python", train_loop_per_worker=counting, run_config=run_config, **{**defaults, **fields})


@pytest.mark.timeout(900)
def test_workers_on_different_hosts_outlive_one_of_them(hosts: Hosts, shared: str) -> None:
    """Two workers on two of three hosts; the host of one of them is killed, and the third takes its place."""
    running = Running(spec_at(shared, train_loop_config={"steps": 60}), hosts.cluster())
    rundir = running.rundir

    def where() -> set[str]:
        reports = read_reports(rundir)
        return {rank["host"] for rank in reports[-1]["ranks"]} if len(reports) > 5 else set()

    before = wait_until(where, 300)
    assert len(before) == 2, "each worker has a host of its own"
    # the head's host stays: with it all of Ray would be gone
    lost = next(number for number in (1, 2) if hosts.ip(number) in before)
    hosts.kill(lost)
    result = running.result(600)
    assert result.metrics["step"] == 59
    reports = read_reports(rundir)
    after = {rank["host"] for rank in reports[-1]["ranks"]}
    assert hosts.ip(lost) not in after
    assert len(after) == 2
    steps = [report["metrics"]["step"] for report in reports]
    assert sorted(set(steps)) == list(range(60))
    assert len(steps) <= 61, "at most one interval, here one step, is trained again"


def test_a_path_that_is_not_shared_is_refused_before_training(hosts: Hosts) -> None:
    """Each host has its own folder under that path. The driver's host has the run, so the others are named."""
    from plugin_core.errors import RayTrainWorkflowsError

    with pytest.raises(RayTrainWorkflowsError, match=r"storage_path: .* is not shared with the cluster"):
        run(spec_at(str(hosts.private)), hosts.cluster())


def test_a_path_that_only_some_hosts_see_is_refused_with_a_solution(hosts: Hosts, tmp_path: Path) -> None:
    """The driver sees the run directory, another host does not."""
    hidden = tmp_path / "storage"
    hidden.mkdir()
    hosts.hide(2, hidden)
    with pytest.raises(
        SpecError, match=rf"which {hosts.ip(2)} of the cluster's 3 nodes cannot see; expected a path that all"
    ):
        run(spec_at(str(hidden)), hosts.cluster())
    assert RunDir.at(str(hidden / "hosts")).result() is None
