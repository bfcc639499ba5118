"""Datasets whose position is resumed, on a real Ray: the same rows in the same blocks in every attempt."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import ray
from ray.data import DataIterator
from ray.data.block import BlockAccessor

from plugin_core import DatasetConfig, TrainSpec
from plugin_core.driver.datasets import load
from plugin_core.driver.train.data_config import data_config, resumable_datasets
from plugin_core.driver.train.resumable_data import blocks_of
from plugin_core.loops.rows.ray_data import Blocks

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def here() -> Iterator[None]:
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def ids(blocks: Blocks) -> list[list[int]]:
    tables = [BlockAccessor.for_block(block).to_arrow() for block in ray.get(blocks.references)]
    assert [table.num_rows for table in tables] == blocks.rows
    return [table["id"].to_pylist() for table in tables]


def training(*names: str) -> TrainSpec:
    """Its datasets a and b, of which those named are resumable."""
    datasets = {name: DatasetConfig(path="x.csv", resumable=name in names) for name in "ab"}
    return TrainSpec(framework="python", train_loop_per_worker="devtools.loops:using_rows", datasets=datasets)


def in_order(dataset: Any) -> Any:
    return resumable_datasets(training("a"), {"a": dataset})["a"]


def made(**fields: Any) -> Blocks:
    return blocks_of(in_order(load(DatasetConfig(**fields), lambda: pytest.fail("no function"))))


def test_files_are_in_order_and_cut_by_their_rows_alone(tmp_path: Path) -> None:
    for number in range(3):
        table = pa.table({"id": np.arange(200) + 200 * number, "text": ["x"] * 200})
        pyarrow.parquet.write_table(table, tmp_path / f"{number}.parquet", row_group_size=30)
    blocks = made(path=str(tmp_path), format="parquet")
    assert [row for block in ids(blocks) for row in block] == list(range(600))
    assert len(blocks.rows) == 24
    assert made(path=str(tmp_path), format="parquet").digest == blocks.digest
    part = ids(made(path=str(tmp_path), format="parquet", split={"part": "train", "test_size": 0.5}))
    rows = [row for block in part for row in block]
    assert 200 < len(rows) < 400
    assert rows == sorted(rows)


def test_the_blocks_of_ray_data_do_not_matter_and_the_rows_do() -> None:
    def dataset(first: int, blocks: int) -> Any:
        rows = np.arange(first, first + 500)
        tables = [pa.table({"id": part, "square": part**2}) for part in np.array_split(rows, blocks)]
        return in_order(ray.data.from_arrow(tables))

    one, other, changed = (blocks_of(dataset(*given)) for given in ((0, 3), (0, 40), (1, 3)))
    assert ids(one) == ids(other) != ids(changed)
    assert one.digest == other.digest != changed.digest


def test_pictures_and_few_rows() -> None:
    pictures = ray.data.range_tensor(3, shape=(2, 2), override_num_blocks=3)
    blocks = blocks_of(in_order(pictures))
    assert sum(blocks.rows) == 3


@pytest.mark.filterwarnings("ignore:.*exclude_resources. is deprecated")  # Ray sets it itself
def test_every_worker_gets_all_blocks_of_such_a_dataset_and_its_shard_of_others() -> None:
    ours, others = in_order(ray.data.range(50)), ray.data.range(10)
    shards = data_config(None, training("a")).configure({"a": ours, "b": others}, 2, None, None)
    assert [len(shard["a"].rows) for shard in shards] == [7, 7]
    assert isinstance(shards[0]["b"], DataIterator)
