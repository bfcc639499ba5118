"""Many steps at once on one cluster of 4 CPUs: each waits its turn, and none for what another holds."""

import asyncio
import itertools
import threading
from pathlib import Path
from typing import Any

import pytest

from devtools.chaos import Running, Trail, drivers, kill, nothing_left, spec_at, wait_until
from plugin_core import LocalCluster, ScalingConfig, TrainSpec, arun
from plugin_core.errors import InfrastructureError, StepCancelledError, StepTimeoutError
from plugin_core.supervisor.supervisor import Event, Supervisor, run_sync

#: Two workers read their data: 3 CPUs, so of two such trainings one has to wait.
WAITING = "waiting for 3 CPUs; "


def reading(config: dict[str, Any]) -> None:
    """Counts the rows that this worker gets, and waits for the file `until`, if one is given."""
    import time

    import ray.train

    from devtools.loops import note

    rank = ray.train.get_context().get_world_rank()
    note(config["trail"], rank=rank, step=0, began=True)
    rows = sum(len(batch["x"]) for batch in ray.train.get_dataset_shard("train").iter_batches(batch_size=8))
    while config.get("until") and not Path(config["until"]).exists():
        time.sleep(0.1)
    note(config["trail"], rank=rank, step=1, began=False)
    ray.train.report({"rows": rows})


class Steps:
    """Trainings that read a small file, each with a trail of its own."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.file = folder / "x.csv"
        self.file.write_text("x\n" + "\n".join(map(str, range(64))) + "\n")

    def spec(self, name: str, workers: int = 2, **fields: Any) -> TrainSpec:
        return spec_at(
            self.folder,
            self.trail(name).file,
            name,
            train_loop_per_worker=reading,
            datasets={"train": str(self.file)},
            scaling_config=ScalingConfig(num_workers=workers),
            **fields,
        )

    def trail(self, name: str) -> Trail:
        return Trail(self.folder / f"{name}.jsonl")

    def times(self, name: str) -> tuple[float, float]:
        """When the first of its workers began to train, and the last one ended."""
        entries = [entry for rank in range(4) for entry in self.trail(name).entries(rank)]
        begun = [entry["time"] for entry in entries if entry["began"]]
        return min(begun), max(entry["time"] for entry in entries if not entry["began"])

    def check_one_at_a_time(self, names: list[str]) -> None:
        times = sorted(map(self.times, names))
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(times))


@pytest.fixture
def steps(tmp_path: Path) -> Steps:
    return Steps(tmp_path)


def together(specs: list[TrainSpec], cluster: LocalCluster) -> tuple[list[Any], list[str]]:
    """The results of these trainings, run at once in one process, and what was told meanwhile."""
    told: list[Event] = []

    async def everything() -> list[Any]:
        return await asyncio.gather(*(arun(spec, cluster, told.append) for spec in specs))

    return asyncio.run(everything()), [event.text for event in told]


@pytest.mark.slow
def test_two_trainings_with_data_at_once(steps: Steps, cluster: LocalCluster) -> None:
    results, told = together([steps.spec("a"), steps.spec("b")], cluster)
    assert [result.metrics["rows"] for result in results] == [32, 32]
    steps.check_one_at_a_time(["a", "b"])
    assert any(f"{WAITING}1 run ahead: " in text and "(has 3 CPUs)" in text for text in told)


@pytest.mark.slow
def test_eight_trainings_with_data_at_once(steps: Steps, cluster: LocalCluster) -> None:
    names = [f"run-{number}" for number in range(8)]
    results, told = together([steps.spec(name) for name in names], cluster)
    assert [result.metrics["rows"] for result in results] == [32] * 8
    assert [result.run.attempt for result in results] == [1] * 8
    steps.check_one_at_a_time(names)
    assert any(f"{WAITING}3 runs ahead" in text for text in told)


@pytest.mark.slow
def test_steps_that_end_while_they_wait_leave_nothing_behind(steps: Steps, cluster: LocalCluster) -> None:
    until = steps.folder / "until"
    holder = Running(steps.spec("holder", loop={"until": str(until)}), cluster)
    steps.trail("holder").wait_for(0)

    def waits(name: str, **limits: Any) -> Running:
        running = Running(steps.spec(name, limits=limits), cluster)
        wait_until(lambda: WAITING in _phase(running) or running.done())
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
    assert "no resources within limits.scheduling_timeout_s (3 s): it needs 3 CPU; free: " in error.message
    assert "ahead: holder (has 3 CPUs), " in error.message
    wait_until(lambda: "waiting for 3 CPUs; 1 run ahead" in _phase(last))
    until.touch()
    assert holder.result().metrics == last.result().metrics == {"rows": 32}
    for running in (killed, cancelled, late, overdue):
        trail = steps.trail(running.rundir.name)
        assert trail.steps() == [], "it never began"
        wait_until(lambda uri=running.rundir.uri, trail=trail: nothing_left(uri, trail))  # type: ignore[misc]


def _phase(running: Running) -> str:
    beat = running.rundir.heartbeat(1)
    return beat.phase if beat else ""


@pytest.mark.slow
def test_a_wide_step_gets_its_turn_while_narrow_ones_keep_coming(steps: Steps, cluster: LocalCluster) -> None:
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
