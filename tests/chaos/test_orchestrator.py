"""SIGKILL of the orchestrating process at every moment; the same call again finds the run, or begins it, with one job."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from devtools.chaos import (
    WORKS,
    Trail,
    Work,
    counting_drivers,
    nothing_left,
    orchestrator_command,
    spec_at,
    wait_until,
    work_at,
)
from plugin_core import ScalingConfig
from plugin_core.clusters.fake import FakeCluster
from plugin_core.clusters.local_head import Head
from plugin_core.runs.directory import RunDir

ROOT = Path(__file__).parents[2]
ONE = ScalingConfig(num_workers=1)


def start(tmp_path: Path, address: str, token: str, *more: str) -> subprocess.Popen[str]:
    command = orchestrator_command(tmp_path / "spec.json", address, token, *more)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def result_of(process: subprocess.Popen[str]) -> dict:  # type: ignore[type-arg]
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err[-3000:]
    return json.loads(out.split("RESULT ")[1])  # type: ignore[no-any-return]


@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize(
    ("moment", "receipts_left"),
    [
        pytest.param("before the receipt", [], marks=pytest.mark.slow),
        pytest.param("between receipt and submit", [1], marks=pytest.mark.slow),
        pytest.param("after submit", [1], marks=pytest.mark.slow),
        pytest.param("mid-run", [1], marks=pytest.mark.slow),
        pytest.param("between success and reading the result", [1], marks=pytest.mark.slow),
    ],
)
def test_killed(tmp_path: Path, trail: Trail, head: Head, moment: str, receipts_left: list[int], work: Work) -> None:
    spec = work_at(work, tmp_path, trail.file, loop={"steps": 6})
    (tmp_path / "spec.json").write_text(spec.model_dump_json())
    rundir = RunDir.of(spec)
    if moment == "mid-run":
        trail.hold(2)
    with counting_drivers(rundir.uri):
        first = start(tmp_path, head.address, head.token, moment)
        if moment == "mid-run":
            trail.wait_for(2)
            first.kill()
            trail.release()
        assert first.wait(600) == -9
        assert rundir.receipts() == receipts_left
        result = result_of(start(tmp_path, head.address, head.token))
    assert result["metrics"].get("total") == (None if work == "command" else sum(range(6)))
    assert rundir.receipts() == [1], "one attempt, and so one job, made the result"
    trail.check(6, kills=0)
    wait_until(lambda: nothing_left(rundir.uri, trail))


@pytest.mark.parametrize("times", [10, pytest.param(50, marks=pytest.mark.slow)])
def test_two_calls_at_the_same_moment_many_times(tmp_path: Path, trail: Trail, times: int) -> None:
    """Two processes call with random delays up to a tenth of a second; the job is a stub that counts."""
    import random

    workers = []
    with FakeCluster(token="token") as cluster:
        script = tmp_path / "many.py"
        script.write_text(
            "import sys, time, json\n"
            "from plugin_core import RayCluster, load_spec, run\n"
            "spec_file, address, token, offsets = sys.argv[1:]\n"
            "spec = load_spec(spec_file)\n"
            "for number, at in enumerate(json.loads(offsets)):\n"
            "    time.sleep(max(0, at - time.monotonic()))\n"
            "    result = run(spec.with_name(f'run-{number}'), RayCluster(address, token))\n"
            "    print(result.run.attempt)\n"
        )
        spec = spec_at(tmp_path, trail.file)
        spec = spec.model_copy(update={"run_config": spec.run_config.model_copy(update={"name": None})})
        (tmp_path / "spec.json").write_text(spec.model_dump_json())
        begin = time.monotonic() + 5
        for _ in range(2):
            offsets = [begin + number * 0.3 + random.uniform(0, 0.1) for number in range(times)]
            command = [sys.executable, str(script)]
            command += [str(tmp_path / "spec.json"), cluster.address, "token", json.dumps(offsets)]
            workers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT))
        for worker in workers:
            out, _ = worker.communicate(timeout=600)
            assert worker.returncode == 0
            assert out.split() == ["1"] * times
    runs = [name.split("-")[1] for name in cluster.jobs]
    assert len(cluster.jobs) == len(set(runs)) == times, "one job a run"


@pytest.mark.slow
def test_two_calls_at_the_same_moment_with_real_training_and_clocks_an_hour_apart(
    tmp_path: Path, trail: Trail, head: Head
) -> None:
    for number in range(3):
        mine = Trail(tmp_path / f"trail-{number}.jsonl")
        spec = spec_at(tmp_path, mine.file, f"run-{number}", scaling_config=ONE, loop={"steps": 4})
        (tmp_path / "spec.json").write_text(spec.model_dump_json())
        at = str(time.monotonic() + 6)
        with counting_drivers(RunDir.of(spec).uri):
            both = [start(tmp_path, head.address, head.token, "", offset, at) for offset in ("0", "3600")]
            results = [result_of(process) for process in both]
        assert results[0] == results[1]
        assert RunDir.of(spec).receipts() == [1]
        mine.check(4, kills=0)
