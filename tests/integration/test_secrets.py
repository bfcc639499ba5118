"""What is handed over to a job reaches all its processes, and no log of Ray's, command line, listing or file of the run."""

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from devtools.chaos import drivers, wait_until
from plugin_core import DatasetConfig, RayCluster, RunConfig, TrainSpec, run
from plugin_core.clusters.jobs_api import ApiError, JobsClient
from plugin_core.clusters.local_head import Head
from plugin_core.clusters.secrets import VARIABLE
from plugin_core.errors import ClusterUnreachableError, StepCancelledError, UserCodeError
from plugin_core.runs.directory import RunDir
from plugin_core.supervisor.cancel import acancel
from plugin_core.supervisor.supervisor import run_sync
from tests.support.canaries import CommandLines, canary, found_in, found_under

READ_BY_A_CHILD = "import os, pathlib; print(pathlib.Path(os.environ['SERVICE_FILE']).read_text('utf-8'), end='')"


def seen() -> str:
    """A digest of the handed-over values that this process, and one that it starts, can see."""
    child = subprocess.run([sys.executable, "-c", READ_BY_A_CHILD], capture_output=True, check=True).stdout
    assert child == Path(os.environ["SERVICE_FILE"]).read_bytes()
    return hashlib.sha256(os.environ["SERVICE_KEY"].encode() + child).hexdigest()


def rows() -> Any:
    """Called in the driver; the rows are made by workers of Ray Data."""
    import ray.data

    in_driver = seen()
    return ray.data.range(2).map(lambda row: {"driver": in_driver, "data": seen()})


def loop(config: dict[str, Any]) -> None:
    import ray.train

    (batch,) = ray.train.get_dataset_shard("train").iter_batches(batch_size=2)
    told = {"driver": str(batch["driver"][0]), "data": str(batch["data"][1]), "worker": seen()}
    hook = hashlib.sha256(os.environ["HOOK_SAW"].encode()).hexdigest()
    ray.train.report({**told, "hook": hook, "of_the_spec": os.environ["OTHER"], "of_the_workers": os.environ["THIRD"]})


def failing_loop(config: dict[str, Any]) -> None:
    content = Path(os.environ["SERVICE_FILE"]).read_text()
    raise RuntimeError(f"the service refuses {os.environ['SERVICE_KEY']} and {content}")


def waiting_loop(config: dict[str, Any]) -> None:
    import ray.train

    ray.train.report({"pid": os.getpid(), "file": os.environ["SERVICE_FILE"], "driver": os.getppid()})
    time.sleep(600)


def spec_at(storage: Path, name: str, loop: Any, **fields: Any) -> TrainSpec:
    run_config = RunConfig(name=name, storage_path=str(storage), **fields.pop("run_config", {}))
    return TrainSpec(framework="python", train_loop_per_worker=loop, run_config=run_config, **fields)


def cluster_with(head: Head, key: str, file: str, **more: str) -> RayCluster:
    return RayCluster(
        head.address,
        head.token,
        python=sys.executable,
        env_vars={"SERVICE_KEY": key, **more},
        env_files={"SERVICE_FILE": f"[default]\ntoken = {file}\n"},
    )


def handed_over(head: Head, run_uri: str, attempt: int) -> bool:
    """Whether the head still keeps what was handed over to an attempt's job."""
    receipt = RunDir.at(run_uri).receipt(attempt)
    assert receipt is not None

    async def ask() -> bool:
        async with JobsClient(head.address, head.token) as client:
            try:
                await client._request("GET", f"/api/packages/gcs/raytrain-{receipt.submission_id}")
            except ApiError as exc:
                if exc.status != 404:
                    raise
                return False
            return True

    return asyncio.run(ask())


def listed(head: Head, submission_id: str) -> bytes:
    """Everything that the Jobs API says about its jobs, and the log of one of them."""

    async def ask() -> bytes:
        async with JobsClient(head.address, head.token) as client:
            jobs = await client._request("GET", "/api/jobs/")
            log = await client._request("GET", f"/api/jobs/{submission_id}/logs")
            return json.dumps([jobs, log]).encode()

    return asyncio.run(ask())


@pytest.mark.slow
def test_secrets_reach_every_process_of_a_job_and_nowhere_that_others_read(tmp_path: Path, head: Head) -> None:
    key, file = canary("variable"), canary("file")
    cluster = cluster_with(head, key, file, OTHER="of the cluster", THIRD="of the cluster")
    spec = spec_at(
        tmp_path,
        "train",
        loop,
        datasets={"train": DatasetConfig(function=rows)},
        runtime_env={"env_vars": {"OTHER": "spec's"}, "worker_process_setup_hook": "tests.support.canaries.users_hook"},
        run_config={"worker_runtime_env": {"env_vars": {"THIRD": "workers'"}}},
    )
    with CommandLines() as commands:
        result = run(spec, cluster)
    digest = hashlib.sha256(f"{key}[default]\ntoken = {file}\n".encode()).hexdigest()
    everywhere = {"driver": digest, "data": digest, "worker": digest}
    of_hook = hashlib.sha256(key.encode()).hexdigest()
    assert result.metrics == {**everywhere, "hook": of_hook, "of_the_spec": "spec's", "of_the_workers": "workers'"}

    assert any(b"setup_worker" in line or VARIABLE.encode() in line for line in commands.seen), "nothing was sampled"
    assert commands.holding([key, file, head.token]) == []
    assert found_under([tmp_path], [key, file, head.token]) == []
    assert found_under([Path(head.temp_dir)], [key, file]) == []
    receipt = RunDir.at(result.run.uri).receipt(1)
    assert receipt is not None
    assert found_in(listed(head, receipt.submission_id), [key, file]) == []
    assert not handed_over(head, result.run.uri, 1), "its driver has ended"


@pytest.mark.slow
def test_a_secret_that_the_users_code_raises_is_in_no_error_and_no_file_of_the_run(tmp_path: Path, head: Head) -> None:
    key, file = canary("raised"), canary("raisedfile")
    with pytest.raises(UserCodeError, match="the service refuses …") as caught:
        run(spec_at(tmp_path, "train", failing_loop), cluster_with(head, key, file))
    assert found_in(f"{caught.value} {caught.value.details}".encode(), [key, file]) == []
    assert found_under([tmp_path], [key, file]) == []
    assert not handed_over(head, str(tmp_path / "train"), 1)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cancelled", "killed"])
def test_handed_over_values_do_not_outlive_a_stopped_job(tmp_path: Path, head: Head, how: str) -> None:
    key, file = canary(how), canary(f"{how}file")
    cluster, uri = cluster_with(head, key, file), str(tmp_path / "train")
    ended: list[BaseException] = []

    def follow() -> None:
        try:
            # Ray kills a driver that has not ended within 3 s of its stop, which then deletes nothing
            patient = {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "600"}}
            run(spec_at(tmp_path, "train", waiting_loop, runtime_env=patient), cluster)
        except (StepCancelledError, ClusterUnreachableError) as exc:
            ended.append(exc)

    def reported(attempt: int) -> dict[str, Any] | None:
        lines = [line for path in tmp_path.glob(f"train/.step/journal/{attempt:03}-*") for line in path.open()]
        return next((entry["metrics"] for line in lines if (entry := json.loads(line)).get("metrics")), None)

    follower = threading.Thread(target=follow)
    with CommandLines() as commands:
        follower.start()
        wait_until(lambda: reported(1) is not None)
        assert handed_over(head, uri, 1), "the workers need it as long as the driver lives"
        if how == "killed":
            (driver,) = drivers(uri)
            driver.send_signal(signal.SIGKILL)
            wait_until(lambda: reported(2) is not None)
            assert handed_over(head, uri, 2), "the next attempt is handed it anew"
        run_sync(acancel(RunDir.at(uri), cluster))
        follower.join(120)
    assert [type(error) for error in ended] == [StepCancelledError]
    attempt = RunDir.at(uri).latest()
    assert not handed_over(head, uri, attempt)
    metrics = reported(attempt)
    assert metrics is not None
    wait_until(lambda: not psutil.pid_exists(metrics["pid"]))
    assert not os.path.exists(metrics["file"])
    assert commands.holding([key, file]) == []
    assert found_under([tmp_path, Path(head.temp_dir)], [key, file]) == []
