"""Many steps at once on one cluster of 4 CPUs: each waits its turn, and none for what another holds."""

import asyncio
import itertools
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from devtools.chaos import Running, drivers, kill, nothing_left, spec_at, wait_until
from plugin_core import LocalCluster, ScalingConfig, TrainSpec, arun
from plugin_core.clusters.local_head import Head
from plugin_core.errors import InfrastructureError, StepCancelledError, StepTimeoutError
from plugin_core.runs.directory import RunDir
from plugin_core.supervisor.supervisor import Event, Supervisor, run_sync
from tests.support.data_trainings import WAITING, DataTrainings

ROOT = Path(__file__).parents[2]


@pytest.fixture
def steps(tmp_path: Path) -> DataTrainings:
    return DataTrainings(tmp_path)


def together(specs: list[TrainSpec], cluster: LocalCluster) -> tuple[list[Any], list[str]]:
    """The results of these trainings, run at once in one process, and what was told meanwhile."""
    told: list[Event] = []

    async def everything() -> list[Any]:
        return await asyncio.gather(*(arun(spec, cluster, told.append) for spec in specs))

    return asyncio.run(everything()), [event.text for event in told]


@pytest.mark.slow
def test_eight_trainings_with_data_at_once(steps: DataTrainings, cluster: LocalCluster) -> None:
    names = [f"run-{number}" for number in range(8)]
    results, told = together([steps.spec(name) for name in names], cluster)
    assert [result.metrics["rows"] for result in results] == [32] * 8
    assert [result.run.attempt for result in results] == [1] * 8
    steps.check_one_at_a_time(names)
    assert any(f"{WAITING}1 run ahead: " in text and "(has 3 CPUs)" in text for text in told)
    assert any(f"{WAITING}3 runs ahead" in text for text in told)


@pytest.mark.slow
def test_eight_commands_at_once(steps: DataTrainings, head: Head) -> None:
    """While they wait, one is cancelled, and one loses its driver and is tried again."""
    names = [f"run-{number}" for number in range(8)]
    go = steps.folder / "go"  # the first one holds its CPUs until then
    for name in names:
        spec = steps.spec(name, loop={"until": str(go)})
        (steps.folder / f"{name}.json").write_text(spec.model_dump_json(exclude_unset=True))
    commands = {name: raytrain("run", f"{steps.folder}/{name}.json", "--quiet") for name in names}

    def rundir_of(name: str) -> RunDir:
        return RunDir.at(str(steps.folder / name))

    def waiting() -> list[str]:
        return [name for name in names if WAITING in phase(rundir_of(name)) and not steps.trail(name).steps()]

    wait_until(lambda: any(steps.trail(name).steps() for name in names) and len(waiting()) >= 3)
    cancelled, killed, *_ = reversed(waiting())
    kill(drivers(rundir_of(killed).uri)[0])
    assert raytrain("cancel", rundir_of(cancelled).uri).wait(600) == 0
    go.touch()
    codes = {name: command.wait(600) for name, command in commands.items()}
    assert codes == {**dict.fromkeys(names, 0), cancelled: 14}
    done = [name for name in names if name != cancelled]
    steps.check_one_at_a_time(done)
    assert steps.trail(cancelled).steps() == [], "it never began"
    assert [rundir_of(name).receipts() for name in done] == [[1, 2] if name == killed else [1] for name in done]
    for name in names:
        wait_until(lambda name=name: nothing_left(rundir_of(name).uri, steps.trail(name)))  # type: ignore[misc]


def raytrain(*words: str) -> subprocess.Popen[bytes]:
    command = [str(Path(sys.executable).with_name("raytrain")), *words]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.mark.slow
@pytest.mark.usefixtures("pending_does_not_count")
def test_steps_that_end_while_they_wait_leave_nothing_behind(steps: DataTrainings, cluster: LocalCluster) -> None:
    until = steps.folder / "until"
    holder = Running(steps.spec("holder", loop={"until": str(until)}), cluster)
    steps.trail("holder").wait_for(0)

    def waits(name: str, **limits: Any) -> Running:
        running = Running(steps.spec(name, limits=limits), cluster)
        wait_until(lambda: WAITING in phase(running.rundir) or running.done())
        return running

    killed, cancelled = waits("killed", max_attempts=1), waits("cancelled")
    last = waits("last")
    late, overdue = waits("late", scheduling_timeout_s=3.0), waits("overdue", timeout_s=60.0)
    kill(drivers(killed.rundir.uri)[0])
    run_sync(Supervisor(cancelled.rundir, cluster).cancel())
    assert isinstance(killed.error(), InfrastructureError)
    assert isinstance(cancelled.error(), StepCancelledError)
    assert isinstance(overdue.error(), StepTimeoutError)
    error = late.error()
    assert isinstance(error, StepTimeoutError)
    assert "no resources within limits.scheduling_timeout_s (3 s): it needs 3 CPUs; free: " in error.message
    assert "ahead: holder (has 3 CPUs), " in error.message
    wait_until(lambda: "waiting for 3 CPUs; 1 run ahead" in phase(last.rundir))
    until.touch()
    assert holder.result().metrics == last.result().metrics == {"rows": 32}
    for running in (killed, cancelled, late, overdue):
        trail = steps.trail(running.rundir.name)
        assert trail.steps() == [], "it never began"
        wait_until(lambda uri=running.rundir.uri, trail=trail: nothing_left(uri, trail))  # type: ignore[misc]


def phase(rundir: RunDir) -> str:
    beat = rundir.heartbeat(1)
    return beat.phase if beat else ""


@pytest.mark.slow
def test_a_wide_step_gets_its_turn_while_narrow_ones_keep_coming(steps: DataTrainings, cluster: LocalCluster) -> None:
    over, began, finished = threading.Event(), threading.Event(), []
    narrow = {"scaling_config": ScalingConfig(num_workers=1), "loop": {"steps": 6, "step_s": 0.5}}

    def keep_coming(stream: int) -> None:
        for number in itertools.count():
            if over.is_set():
                return
            name = f"narrow-{stream}-{number}"
            running = Running(spec_at(steps.folder, steps.folder / f"{name}.jsonl", name, **narrow), cluster)
            wait_until(lambda: running.done() or steps.trail(name).steps())  # noqa: B023
            began.set()
            finished.append(running.result())

    streams = [threading.Thread(target=keep_coming, args=(stream,)) for stream in range(3)]
    for stream in streams:
        stream.start()
    assert began.wait(300)
    wide = Running(steps.spec("wide", workers=3), cluster)
    try:
        assert wide.result(300).metrics == {"rows": 21}
    finally:
        over.set()
        for stream in streams:
            stream.join(300)
    assert len(finished) >= 3
