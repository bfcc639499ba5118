"""Datasets that are resumed at a position: the same rows in the same blocks in every attempt, on any cluster."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import ray
import ray.data
from ray.data.block import BlockAccessor
from ray.train import DataConfig

from plugin_core.loops.rows.ray_data import Blocks

#: The number of blocks is the square root of the number of rows, but at most this. It depends on the rows alone; Ray
#: Data's own number depends on the cluster's CPUs as well.
_MAX_BLOCKS = 2_000
#: Blocks whose first and last row are part of the digest.
_SAMPLED = 16


def read_in_order(dataset: ray.data.Dataset, options: ray.data.ExecutionOptions) -> ray.data.Dataset:
    """The dataset, read once into the object store: its rows in order, in a number of blocks that depends only on
    theirs. `options` preserve the order."""
    dataset.context.execution_options = options
    read = dataset.materialize()
    cut = read.repartition(min(_MAX_BLOCKS, max(1, math.isqrt(read.count()))))
    cut.context.execution_options = options
    return cut.materialize()


def blocks_of(dataset: ray.data.Dataset) -> Blocks:
    """The blocks of a dataset that `read_in_order` made. Blocks without rows are left out."""
    entries = [entry for bundle in dataset.iter_internal_ref_bundles() for entry in bundle.blocks]
    found = [(entry.ref, entry.metadata.num_rows) for entry in entries if entry.metadata.num_rows]
    some = found[:: max(1, len(found) // _SAMPLED)]
    edges = ray.get([ray.remote(num_cpus=0)(_edges).remote(reference) for reference, _ in some])
    digest = hashlib.sha256(repr(edges).encode()).hexdigest()[:32]
    return Blocks([reference for reference, _ in found], [rows for _, rows in found], digest)


def _edges(block: Any) -> str:
    """The first and the last row of a block, as text."""
    accessor = BlockAccessor.for_block(block)
    table, last = accessor.to_arrow(), accessor.num_rows() - 1
    return repr([table.slice(row, 1).to_pylist() for row in (0, last)])


class ResumableDataConfig(DataConfig):
    """Gives every worker the references of all blocks of the datasets in `resumable`; others as Ray does."""

    def __init__(self, resumable: list[str], **options: Any):
        super().__init__(**options)
        self._resumable = resumable

    def configure(self, datasets: dict[str, Any], world_size: int, *arguments: Any, **options: Any) -> list[dict[str, Any]]:
        ours = {name: blocks_of(dataset) for name, dataset in datasets.items() if name in self._resumable}
        others = {name: dataset for name, dataset in datasets.items() if name not in self._resumable}
        shards: list[dict[str, Any]] = super().configure(others, world_size, *arguments, **options)
        return [{**shard, **ours} for shard in shards]
