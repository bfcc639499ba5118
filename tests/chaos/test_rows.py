"""Kills in the middle of an epoch: the steps that a training keeps use every row of it once."""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from devtools.chaos import Running, Trail, drivers, kill, nothing_left, spec_at, wait_until
from devtools.ray_heads import OwnHead
from plugin_core import CheckpointConfig, DatasetConfig, FailureConfig, LocalCluster, LocalTier, ScalingConfig, TrainSpec

pytestmark = pytest.mark.slow
ROWS, EPOCHS = 301, 3


def training(
    folder: Path,
    trail: Path,
    source: str,
    loop: dict[str, Any] | None = None,
    checkpoint_config: CheckpointConfig | None = None,
    **fields: Any,
) -> TrainSpec:
    data = folder / "data"
    data.mkdir()
    for number, ids in enumerate(np.array_split(np.arange(ROWS), 4)):
        pyarrow.parquet.write_table(pa.table({"id": ids}), data / f"{number}.parquet", row_group_size=13)
    given = {
        "source": source,
        "data": str(data),
        "rows": ROWS,
        "epochs": EPOCHS,
        "batch_size": 4,
        "step_s": 0.1,
        **(loop or {}),
    }
    datasets = {"train": DatasetConfig(path=str(data), format="parquet", resumable=True)} if source == "dataset" else {}
    return spec_at(
        folder,
        trail,
        train_loop_per_worker="devtools.loops:using_rows",
        loop=given,
        datasets=datasets,
        limits={"max_attempts": 20},
        run_config={
            "failure_config": FailureConfig(max_failures=20),
            "checkpoint_config": checkpoint_config or CheckpointConfig(),
        },
        **fields,
    )


def kept(trail: Trail) -> Counter[tuple[int, int]]:
    """How often the steps that the training keeps used each row of each epoch: of a step that was done again, the last time
    counts."""
    last = {entry["step"]: entry["world"] for entry in trail.entries(0)}
    steps = {(entry["step"], rank): entry for rank in (0, 1) for entry in trail.entries(rank)}
    used = [entry for (step, rank), entry in steps.items() if rank < last[step]]
    return Counter((entry["epoch"], row) for entry in used for row in entry["rows"])


EVERY_ROW_ONCE = Counter((epoch, row) for epoch in range(EPOCHS) for row in range(ROWS))


@pytest.mark.parametrize(
    ("source", "kills", "tier"),
    [
        ("parquet", 10, None),
        ("dataset", 3, None),
        ("torch", 3, None),
        ("parquet", 4, LocalTier(storage_every=1000)),
    ],
    ids=["parquet", "dataset", "torch", "parquet, checkpoints on the node"],
)
def test_each_row_is_used_by_one_step_whatever_is_killed(
    tmp_path: Path, trail: Trail, cluster: LocalCluster, source: str, kills: int, tier: LocalTier | None
) -> None:
    """Either rank and the driver, by turns, each some steps after it resumed."""
    if tier is not None:
        tier = tier.model_copy(update={"folder": str(tmp_path / "nodes")})
    checkpoints = CheckpointConfig(local_tier=tier)
    spec = training(tmp_path, trail.file, source, checkpoint_config=checkpoints)
    running, draw = Running(spec, cluster), random.Random(kills)
    for number in range(kills):
        trail.wait_for_process(number + 1)
        at = trail.steps()[-1] + draw.randint(3, 8)
        trail.hold(at)
        wait_until(lambda at=at: running.done() or trail.steps()[-1] >= at)
        assert not running.done(), "it was killed as often as meant"
        victim = drivers(running.rundir.uri)[0] if number % 3 == 2 else trail.entries(number % 3)[-1]["pid"]
        kill(victim)
    trail.release()
    result = running.result()
    assert (result.metrics["epoch"], result.metrics["used"]) == (EPOCHS, 0)
    assert kept(trail) == EVERY_ROW_ONCE
    assert len({entry["pid"] for entry in trail.entries()}) == kills + 1
    assert trail.repeated() <= kills * 3, "each kill costs at most one checkpoint interval"
    wait_until(lambda: nothing_left(running.rundir.uri, trail))


@pytest.mark.parametrize("source", ["parquet", "dataset", "torch"])
def test_each_row_is_used_by_one_step_while_the_number_of_workers_changes(
    tmp_path: Path, trail: Trail, own_head: Callable[..., OwnHead], source: str
) -> None:
    """Two workers, one when a node dies, two again when another one comes."""
    head = own_head(num_cpus=1)
    second = head.add_node(num_cpus=1)
    scaling = ScalingConfig(num_workers=(1, 2), elastic_resize_monitor_interval_s=3.0)
    loop = {"alone": str(tmp_path / "alone")}
    running = Running(training(tmp_path, trail.file, source, loop, scaling_config=scaling), head.cluster())

    def wait_for_steps(world: int) -> None:
        before = len(trail.entries())
        wait_until(lambda: sum(entry["world"] == world for entry in trail.entries()[before:]) >= 7)

    wait_for_steps(2)
    head.remove_node(second)
    wait_for_steps(1)
    head.add_node(num_cpus=1)
    wait_for_steps(2)
    Path(loop["alone"]).touch()
    result = running.result()
    assert (result.metrics["epoch"], result.metrics["used"]) == (EPOCHS, 0)
    assert kept(trail) == EVERY_ROW_ONCE
