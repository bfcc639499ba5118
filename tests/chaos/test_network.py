"""The Jobs API is unreachable, or a cluster is cut off while its processes live on."""

import json
import shutil
import signal
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from devtools.chaos import Proxy, Running, Trail, Work, drivers, kill, nothing_left, spec_at, wait_until, work_at
from devtools.ray_heads import OwnHead
from devtools.servers import s3_endpoint
from plugin_core import RayCluster, ScalingConfig
from plugin_core.clusters import jobs_api
from plugin_core.clusters.local_head import Head
from plugin_core.errors import ClusterUnreachableError
from plugin_core.errors.plain_text import plain
from plugin_core.runs.saved_state import Start


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "work"), [("black hole", "training"), (500, "training"), (500, "function"), ("black hole", "command")]
)
def test_the_job_finishes_while_its_api_is_down(
    tmp_path: Path,
    trail: Trail,
    head: Head,
    proxy: Callable[[str], Proxy],
    mode: Any,
    work: Work,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Down for longer than every timeout of the client; nothing is started again, and the result is returned."""
    monkeypatch.setattr(jobs_api, "REQUEST_TIMEOUT_S", 3.0)
    gate = proxy(head.address)
    cluster = RayCluster(f"http://127.0.0.1:{gate.port}", head.token, python="python")
    trail.hold(39)
    running = Running(work_at(work, tmp_path, trail.file, loop={"steps": 40}), cluster)
    trail.wait_for(3)
    gate.set(mode)
    wait_until(lambda: any("cannot be queried" in text for text in running.texts()))
    trail.release()
    wait_until(lambda: running.rundir.end(1) is not None)
    wait_until(lambda: not drivers(running.rundir.uri))
    gate.set("forward")
    assert running.result().metrics.get("total") == (None if work == "command" else sum(range(40)))
    assert running.rundir.receipts() == [1]
    trail.check(40, kills=0)
    told = [line for text in running.texts("log") for line in text.splitlines() if line]
    receipt = running.rundir.receipt(1)
    assert receipt is not None
    there = log_of(head, receipt.submission_id)
    assert told == [line for line in there.splitlines() if line], "no line of the log is told twice, none is lost"
    assert sum("result: {" in line for line in told) == 1
    if work == "training":
        assert [event.data["metrics"]["step"] for event in running.events if event.kind == "report"][-1] == 39


@pytest.mark.smoke
def test_a_job_finishes_though_its_storage_and_then_its_api_are_away(
    s3: str, trail: Trail, head: Head, proxy: Callable[[str], Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_api, "REQUEST_TIMEOUT_S", 3.0)
    store, api = proxy(s3_endpoint(s3)), proxy(head.address)
    storage = f"s3://runs/both-away?endpoint_override=127.0.0.1:{store.port}&scheme=http"
    cluster = RayCluster(f"http://127.0.0.1:{api.port}", head.token, python="python")
    one = ScalingConfig(num_workers=1)
    trail.hold(29)
    running = Running(spec_at(storage, trail.file, scaling_config=one, loop={"steps": 30}), cluster)
    trail.wait_for(4)
    store.set(503)
    wait_until(lambda: store.requests_answered > 3)
    store.set("forward")
    trail.wait_for(8)
    api.set("black hole")
    wait_until(lambda: any("cannot be queried" in text for text in running.texts()))
    trail.release()
    api.set("forward")
    assert running.result().metrics["total"] == sum(range(30))
    assert running.rundir.receipts() == [1]
    assert trail.steps() == list(range(30)), "the training was never begun again"


def log_of(head: Head, submission_id: str) -> str:
    """The job's whole log, as the cluster itself gives it."""
    headers = {"Authorization": f"Bearer {head.token}"}
    request = urllib.request.Request(f"{head.address}/api/jobs/{submission_id}/logs", headers=headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return plain(json.load(answer)["logs"])


@pytest.mark.slow
@pytest.mark.parametrize("work", ["training", "function", "command"])
def test_split_brain(
    tmp_path: Path,
    trail: Trail,
    own_head: Callable[..., OwnHead],
    head: Head,
    proxy: Callable[[str], Proxy],
    work: Work,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cluster is cut off with its driver stopped; the run goes on elsewhere; then the driver wakes up. A job
    goes on in its own process meanwhile, and may not save any more."""
    monkeypatch.setattr(jobs_api, "REQUEST_TIMEOUT_S", 3.0)
    cut_off = own_head(num_cpus=2)
    gate = proxy(cut_off.address)
    limits = {"unreachable_timeout_s": 3.0, "heartbeat_ttl_s": 5.0}
    step_s = 0.3 if work == "training" else 0.5  # nothing else holds up a job's process
    spec = work_at(work, tmp_path, trail.file, limits=limits, loop={"steps": 100, "step_s": step_s})
    trail.hold(60)
    first = Running(spec, cut_off.cluster(f"http://127.0.0.1:{gate.port}"))
    before = trail.wait_for(4)["pid"]
    (driver,) = drivers(first.rundir.uri)
    kill(driver, signal.SIGSTOP)
    gate.set("black hole")
    assert isinstance(first.error(), ClusterUnreachableError)
    second = Running(spec, RayCluster(head.address, head.token, python="python"))
    wait_until(lambda: second.rundir.receipts() == [1, 2])
    wait_until(lambda: any(entry["pid"] != before for entry in trail.entries()))
    trail.release()
    kept = _files_of_attempt(first.rundir.uri, 1)
    gate.set("forward")
    kill(driver, signal.SIGCONT)
    wait_until(lambda: not [process for process in drivers(first.rundir.uri) if process.pid == driver.pid])
    result = second.result()
    assert result.run.attempt == 2
    assert _files_of_attempt(first.rundir.uri, 1) == kept, "the first attempt wrote nothing more"
    assert first.rundir.end(1) is None
    if work == "training":
        assert result.metrics["total"] == sum(range(100))
        assert result.load().metrics["step"] == 99, "Ray's own index is that of the second attempt"
    else:
        assert Start(first.rundir.uri, 2, 1).load() == [100, sum(range(100))]
    pids = [entry["pid"] for entry in trail.entries()]
    since = pids[next(number for number, pid in enumerate(pids) if pid != before) :]
    assert since.count(before) <= 1, "the first attempt ended at its next save"
    mine = [entry["step"] for entry in trail.entries() if entry["pid"] != before]
    assert mine == sorted(set(mine)), "the second attempt was never disturbed"
    wait_until(lambda: nothing_left(first.rundir.uri, trail))


def _files_of_attempt(uri: str, attempt: int) -> dict[str, float]:
    mark = f"{attempt:03}"
    return {
        str(file): file.stat().st_mtime
        for file in Path(uri).rglob("*")
        if file.is_file() and (f"_a{mark}_" in str(file) or file.name.startswith((mark, f"{attempt:06}-")))
    }


@pytest.mark.slow
def test_a_run_directory_deleted_by_hand_and_two_storages_under_one_name(tmp_path: Path, trail: Trail, head: Head) -> None:
    cluster = RayCluster(head.address, head.token, python="python")
    one = ScalingConfig(num_workers=1)
    other_trail = Trail(tmp_path / "other.jsonl")
    both = [
        Running(spec_at(tmp_path / place, mine.file, scaling_config=one, loop={"steps": 4}), cluster)
        for place, mine in (("a", trail), ("b", other_trail))
    ]
    for running, mine in zip(both, (trail, other_trail), strict=True):
        assert running.result().metrics["total"] == 6
        assert mine.steps() == [0, 1, 2, 3]
        assert running.rundir.receipts() == [1]
    shutil.rmtree(both[0].rundir.uri)
    again = Running(both[0].spec, cluster)
    assert again.result().run.attempt == 1
    assert trail.steps() == [0, 1, 2, 3] * 2, "it began afresh"
