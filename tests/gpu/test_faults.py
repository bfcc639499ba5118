"""The promise on a GPU: `make test-gpu`. The workers are those of the embedded head, with its fork server."""

import subprocess
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
import torch

from devtools.chaos import Running, Trail, drivers, kill, nothing_left, spec_at, wait_until
from example_flows import digits_steps
from plugin_core import (
    BatchInferSpec,
    FailureConfig,
    LocalCluster,
    RunConfig,
    ScalingConfig,
    TrainSpec,
    run,
)
from plugin_core.runs.directory import RunDir
from plugin_core.runs.journal import JournalReader, read_reports
from plugin_core.runs.rehearsal import FORGETS, RESUMES
from plugin_core.specs.common import NcclHang
from plugin_core.supervisor.cancel import acancel
from plugin_core.supervisor.rehearse import rehearse
from plugin_core.supervisor.supervisor import run_sync

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
]
ONE = ScalingConfig(num_workers=1, use_gpu=True)
STEPS = 12
MIB = 2**20


def used_mib() -> int:
    """What all processes hold of the first GPU's memory."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    return int(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout)


def training(folder: Path, trail: Trail, name: str = "run", **fields: Any) -> TrainSpec:
    loop = {"steps": STEPS, **fields.pop("loop", {})}
    given = {"framework": "torch", "train_loop_per_worker": "tests.gpu.loops:dropping", "scaling_config": ONE, **fields}
    return spec_at(folder, trail.file, name, loop=loop, seed=3, deterministic=True, **given)


def losses(uri: str) -> dict[int, float]:
    """By step; of a step that was repeated, what it gave last."""
    return {report["metrics"]["step"]: report["metrics"]["loss"] for report in read_reports(RunDir.at(uri))}


def test_kills_change_no_bit_of_what_a_gpu_computes(tmp_path: Path, trail: Trail, cluster: LocalCluster) -> None:
    """The worker is killed, and later the driver; random numbers and optimizer of the GPU go on from the checkpoint."""
    straight = run(training(tmp_path, Trail(tmp_path / "straight.jsonl"), "straight"), cluster)
    running = Running(training(tmp_path, trail), cluster)
    kill(trail.wait_for(4)["pid"])
    trail.wait_for_process(2)
    trail.wait_for(8)
    for driver in drivers(running.rundir.uri):
        driver.kill()
    result = running.result()
    trail.check(STEPS, kills=2, every=1)
    assert result.run.attempt == 2
    assert losses(running.rundir.uri) == losses(straight.run.uri)
    wait_until(lambda: nothing_left(running.rundir.uri, trail))


def test_when_cancel_returns_the_gpu_is_free(tmp_path: Path, trail: Trail, cluster: LocalCluster) -> None:
    before = used_mib()
    running = Running(training(tmp_path, trail, loop={"steps": 500, "bytes": 2048 * MIB}), cluster)
    worker = psutil.Process(trail.wait_for(2)["pid"])
    assert used_mib() >= before + 2048
    assert run_sync(acancel(running.rundir, cluster)) == "cancelled"
    assert not worker.is_running()
    assert used_mib() <= before + 64
    assert nothing_left(running.rundir.uri, trail)


def test_a_killed_driver_leaves_no_worker_on_the_gpu(tmp_path: Path, trail: Trail, cluster: LocalCluster) -> None:
    """The next attempt needs all of the memory, so it would fail beside the workers of the one before."""
    total = torch.cuda.get_device_properties(0).total_memory
    running = Running(training(tmp_path, trail, loop={"bytes": int(0.6 * total)}), cluster)
    trail.wait_for(4)
    for driver in drivers(running.rundir.uri):
        driver.kill()
    assert running.result().run.attempt == 2
    trail.check(STEPS, kills=1, every=1)


def test_a_batch_that_does_not_fit_a_real_gpu_is_halved(tmp_path: Path, cluster: LocalCluster) -> None:
    spec = TrainSpec(
        framework="torch",
        train_loop_per_worker="tests.gpu.loops:filling",
        train_loop_config={"share": 1.5},
        scaling_config=ONE,
        run_config=RunConfig(name="filling", storage_path=str(tmp_path)),
        failure_policy={"gpu_oom": {"change": {"share": {"times": 0.5}}}},
    )
    result = run(spec, cluster)
    (failure,) = [entry for entry in JournalReader(RunDir.at(result.run.uri)) if "cause" in entry]
    assert (failure["cause"], failure["changed"], result.metrics["share"]) == ("gpu_oom", {"share": 0.75}, 0.75)


@pytest.mark.parametrize("forgets", [False, True])
def test_a_rehearsal_looks_at_the_gpus_random_numbers(tmp_path: Path, cluster: LocalCluster, forgets: bool) -> None:
    spec = TrainSpec(
        framework="torch",
        train_loop_per_worker="tests.gpu.loops:dropping",
        train_loop_config={"steps": 6, "forgets": forgets},
        scaling_config=ONE,
        run_config=RunConfig(name="rehearsed"),
        seed=3,
    )
    found = rehearse(spec, cluster, reports=5, kills=1)
    what = [finding.what for finding in found.findings]
    assert (found.verdict, what) == ((FORGETS, ["random numbers"]) if forgets else (RESUMES, [])), found


def test_ncclras_watches_a_training(tmp_path: Path, trail: Trail, cluster: LocalCluster) -> None:
    failures = FailureConfig(nccl_hang=NcclHang(confirm_duration_s=30, min_poll_interval_s=1))
    spec = training(tmp_path, trail, run_config={"failure_config": failures}, loop={"steps": 6, "step_s": 0.5})
    assert run(spec, cluster).metrics["step"] == 5


def test_the_digits_learn_and_predict_on_a_gpu(tmp_path: Path, cluster: LocalCluster) -> None:
    data = digits_steps.make_data(str(tmp_path / "data"))
    trained = run(
        TrainSpec(
            framework="torch",
            train_loop_per_worker=digits_steps.train_loop,
            train_loop_config={"epochs": 8, "lr": 0.003, "batch_size": 32},
            scaling_config=ONE,
            datasets={"train": data["train"]},
            run_config=RunConfig(name="train", storage_path=str(tmp_path)),
        ),
        cluster,
    )
    predicted = run(
        BatchInferSpec(
            predictor="tests.gpu.loops:OnGpu",
            num_gpus=1,
            checkpoint=trained.checkpoint,
            dataset=data["test"],
            run_config=RunConfig(name="predict", storage_path=str(tmp_path)),
        ),
        cluster,
    )
    table = pq.read_table(predicted.output)
    right = [a == b for a, b in zip(table["label"].to_pylist(), table["prediction"].to_pylist(), strict=True)]
    assert len(right) == 360
    assert sum(right) / len(right) > 0.95
