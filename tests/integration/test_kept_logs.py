"""Logs in the run directory: on S3, and of a real training whose head was killed."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.counting_s3 import counting_s3
from devtools.chaos import kill_all, wait_until
from devtools.ray_heads import OwnHead
from plugin_core import RunConfig, ScalingConfig, TrainSpec
from plugin_core.driver import log_keeper
from plugin_core.runs.directory import RunDir
from plugin_core.runs.kept_log import rank_folder
from plugin_core.storage.location import Location
from plugin_core.supervisor.supervisor import Supervisor, prepare, run_sync
from tests.support.kept_logs import everything, keep


def test_on_s3_a_write_of_the_log_is_one_request_and_nothing_new_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_keeper, "LOOK_S", 0.01)
    monkeypatch.setattr(log_keeper, "SEGMENT", 50)
    monkeypatch.setattr(log_keeper, "KEPT", 300)
    monkeypatch.setattr(log_keeper, "KEPT_HEAD", 100)
    printed = tmp_path / "out"
    printed.touch()
    with counting_s3() as (uri, requests):
        rundir = RunDir.at(Location.of(uri).child("run").uri)
        with keep(rundir, printed) as keeper:
            requests.take()
            for number in range(20):
                with printed.open("a") as file:
                    file.write(f"{number:03} ".ljust(59, "x") + "\n")
                keeper.flush()
                keeper.flush()
                kinds = [kind for kind, _ in requests.take()]
                first = ["LIST"] * (number == 0)  # what a process before kept
                assert kinds == first + (["PUT", "DELETE"] if number > 3 else ["PUT"])
        lines = everything(rundir).splitlines()
    assert lines[0].startswith("000 ")
    assert lines[-1].startswith("019 ")
    assert [line for line in lines if "not kept" in line] == ["… 0.0 MB of the log not kept"]
    assert sum(map(len, lines)) < 400


def printing_loop(config: dict[str, str]) -> None:
    import time

    import ray.train

    rank = ray.train.get_context().get_world_rank()
    print(f"last line of rank {rank}", flush=True)
    ray.train.report({"epoch": 0})
    time.sleep(3600)


@pytest.mark.slow
def test_after_its_head_was_killed_the_last_lines_of_a_run_and_of_each_rank_are_shown(
    tmp_path: Path, own_head: Callable[..., OwnHead]
) -> None:
    head = own_head(num_cpus=3)
    spec = TrainSpec(
        framework="python",
        train_loop_per_worker=printing_loop,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="run", storage_path=str(tmp_path)),
    )
    rundir = run_sync(prepare(spec, head.cluster()))
    run_sync(Supervisor(rundir, head.cluster()).submit())
    wait_until(lambda: all("last line of" in everything(rundir, 1, rank_folder(rank)) for rank in (0, 1)))
    # Ray shows the driver lines that differ only in their numbers once
    wait_until(lambda: "last line of rank" in everything(rundir))
    kill_all(head.processes())

    def logs(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).with_name("raytrain")), "logs", rundir.uri, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)

    done = logs("--address", head.address)
    assert "as the run directory keeps it" in done.stderr
    assert "last line of rank" in done.stdout
    for rank in (0, 1):
        assert f"last line of rank {rank}" in logs("--rank", str(rank)).stdout.splitlines()
