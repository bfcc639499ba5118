"""Trainings that stand still, each in another way, and trainings that only seem to."""

import itertools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from devtools.chaos import Proxy, Running, Trail, drivers, kill, spec_at, wait_until
from devtools.notes import note
from devtools.servers import s3_endpoint
from plugin_core import LocalCluster
from plugin_core.runs.journal import JournalReader
from plugin_core.runs.ledgers import ledger_of
from tests.support.standstills import AT, STANDSTILLS, STEPS, training

pytestmark = pytest.mark.slow


def hangs_told(running: Running) -> list[str]:
    return [event.text for event in running.events if event.kind == "phase" and event.data.get("phase") == "hanging"]


@pytest.mark.parametrize("how", [*STANDSTILLS, "stopped"])
def test_the_rank_that_stands_still_is_named_and_the_training_restarts(
    tmp_path: Path, trail: Trail, cluster: LocalCluster, how: str
) -> None:
    if how == "stopped":
        trail.hold(AT)
    running = Running(training(tmp_path, trail.file, how), cluster)
    if how == "stopped":
        wait_until(lambda: any(entry["step"] == AT for entry in trail.entries(rank=1)))
        kill(trail.entries(rank=1)[-1]["pid"], signal.SIGSTOP)
        trail.release()
    result = running.result()
    assert result.metrics == {"step": STEPS - 1}
    assert (result.run.attempt, running.causes()) == (1, ["hang"])
    (told,) = hangs_told(running)
    assert "the training hangs: no report for " in told
    _, _, place = told.partition("rank 1 is ")
    assert ("stopped (SIGSTOP)" if how == "stopped" else f"{how} (standstills.py:") in place, told
    assert "the others wait in " in told, told
    (kept,) = Path(running.rundir.location.path, ".step", "hangs").iterdir()
    assert kept.read_text().count("rank ") >= 2
    assert any("hang: no report for" in event.text for event in running.events if event.data.get("phase") == "restarting")
    ledger = ledger_of(running.rundir)
    assert ledger.seconds["hanging"] >= 5.0
    assert ledger.total == pytest.approx(ledger.until - ledger.began)


def test_a_hang_is_only_told_where_that_is_wanted(tmp_path: Path, trail: Trail, cluster: LocalCluster) -> None:
    """By default: the stacks are kept, nothing is restarted, and the training goes on once it can."""
    running = Running(training(tmp_path, trail.file, "waiting", action="warn"), cluster)
    stacks = Path(running.rundir.location.path, ".step", "hangs")
    wait_until(lambda: any(stacks.glob("*.txt")))  # their event is read some seconds later
    Path(tmp_path, "once.go").touch()
    result = running.result()
    assert (result.metrics, result.run.attempt, running.causes()) == ({"step": STEPS - 1}, 1, [])
    told = hangs_told(running)  # again if it lasts twice as long, which it may on a busy machine
    standing = told[:-1] or told  # the last of several may be told while rank 1 already goes on
    assert {"rank 1 is in standing_still (standstills.py:" in text for text in standing} == {True}, told
    quiet = [int(text.partition("no report for ")[2].split()[0]) for text in told]
    assert all(after >= 2 * before - 1 for before, after in itertools.pairwise(quiet)), quiet
    assert any("the training hangs" in warning for warning in result.warnings), result.warnings
    assert len({entry["pid"] for entry in trail.entries()}) == 1, "no worker was replaced"


def seeming(config: dict[str, Any]) -> None:
    """A first step that takes long, data that one rank waits for and an evaluation, each of 20 steps' time, a long stretch
    that tells of its progress."""
    import time

    import ray.train

    from plugin_core.loops.progress import progress

    rank = ray.train.get_context().get_world_rank()
    for step in range(14):
        if step == 0:
            time.sleep(8)
        elif (step == 5 and rank == 1) or step == 8:
            time.sleep(20 * 0.2)
        elif step == 11:
            for _ in range(80):
                time.sleep(0.1)
                progress()
        time.sleep(0.2)
        ray.train.report({"step": step, "pid": os.getpid()})


def test_compiling_waiting_for_data_evaluating_and_telling_of_progress_are_no_hangs(
    tmp_path: Path, trail: Trail, cluster: LocalCluster
) -> None:
    given = {"action": "restart", "start_s": 30.0, "min_s": 1.0}
    result = Running(spec_at(tmp_path, trail.file, train_loop_per_worker=seeming, hang_detection=given), cluster).result()
    assert (result.metrics["step"], result.warnings) == (13, [])


def reporting(config: dict[str, Any]) -> None:
    """Polls without news lie between its reports."""
    import ray.train

    for step in range(15):
        note(config["trail"], rank=ray.train.get_context().get_world_rank(), step=step)
        time.sleep(0.8)
        ray.train.report({"step": step})


def test_while_the_driver_stands_still_nobody_hangs(tmp_path: Path, trail: Trail, cluster: LocalCluster) -> None:
    """It is stopped for longer than the bound, as on a saturated or suspended machine, and hears of no report."""
    given = {"action": "restart", "start_s": 60.0, "min_s": 3.0, "factor": 2.0}
    spec = spec_at(
        tmp_path, trail.file, train_loop_per_worker=reporting, hang_detection=given, limits={"heartbeat_ttl_s": 60.0}
    )
    running = Running(spec, cluster)
    trail.wait_for(5)
    (driver,) = drivers(running.rundir.uri)
    kill(driver, signal.SIGSTOP)
    time.sleep(5.0)
    kill(driver, signal.SIGCONT)
    result = running.result()
    assert (result.metrics, result.warnings) == ({"step": 14}, [])


def uploading_slowly(config: dict[str, Any]) -> None:
    import tempfile
    import time

    import ray.train

    for step in range(8):
        time.sleep(0.2)
        checkpoint = None
        if step == 5:
            folder = Path(tempfile.mkdtemp())
            for number in range(40):
                name = f"model-{ray.train.get_context().get_world_rank()}-{number}.bin"
                folder.joinpath(name).write_bytes(os.urandom(120_000))
            checkpoint = ray.train.Checkpoint(str(folder))
        ray.train.report({"step": step}, checkpoint)


def test_an_upload_through_a_slow_network_is_no_hang(
    s3: str, trail: Trail, cluster: LocalCluster, proxy: Callable[[str], Proxy]
) -> None:
    """It takes several times the bound, but no request so long that S3's client tries again."""
    gate = proxy(s3_endpoint(s3))
    gate.bytes_per_s = 60_000  # per connection: two seconds for a file, several at a time
    storage = f"s3://runs/slow?endpoint_override=127.0.0.1:{gate.port}&scheme=http"
    given = {"action": "restart", "start_s": 60.0, "min_s": 2.0, "factor": 2.0}
    spec = spec_at(storage, trail.file, train_loop_per_worker=uploading_slowly, hang_detection=given)
    running = Running(spec, cluster)
    result = running.result()
    assert (result.metrics["step"], result.warnings) == (7, [])
    # told with a report after it
    assert sum(entry.get("blocked_s", 0.0) for entry in JournalReader(running.rundir)) > 6.0, "the upload was slow"
