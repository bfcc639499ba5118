"""Rows of a training's Ray Dataset, in an order that a later attempt can reproduce.

An ordinary shard gives each block to whichever worker asks first, and drops rows so that all workers get equally many.
A dataset with `DatasetConfig(resumable=True)` stays in the object store instead, and every worker can get any block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray
import ray.train
from ray.data.block import BlockAccessor

from plugin_core.errors import SpecError
from plugin_core.errors.shown import shown
from plugin_core.loops.rows.blocks import BlockRows


@dataclass(frozen=True)
class Blocks:
    """A dataset's blocks in order: their references and row counts; and a digest of the rows."""

    references: list[Any]
    rows: list[int]
    digest: str


class RayRows(BlockRows):
    """Batches of the rows of the step's dataset `name`."""

    def __init__(self, name: str, **options: Any):
        shard = ray.train.get_dataset_shard(name)
        if not isinstance(shard, Blocks):
            raise SpecError(
                f"datasets.{name}.resumable: got False, so Ray Data decides while it reads which worker gets which rows;"
                f" expected DatasetConfig(…, resumable=True), or ray.train.get_dataset_shard({shown(name)})"
            )
        self._references = shard.references
        super().__init__(shard.rows, shard.digest, **options)

    def _read(self, block: int) -> Any:
        return BlockAccessor.for_block(ray.get(self._references[block])).to_arrow()
