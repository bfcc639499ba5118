"""Data that is read block by block, each block by one rank or a few: row groups of parquet files, blocks of Ray Data.

In an epoch, the blocks come in random order, and so do the rows inside each block.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any, get_args

import numpy as np
import pyarrow as pa
from ray.data.block import BlockAccessor

from plugin_core.errors import SpecError
from plugin_core.errors.shown import shown
from plugin_core.loops.rows.permutation import Permutation
from plugin_core.loops.rows.plan import Plan
from plugin_core.loops.rows.resumable import Format, ResumableRows

#: A block's place in the order, and the half-open range of some of its rows, in the block's own order.
Piece = tuple[int, int, int]


class BlockRows(ResumableRows):
    """Batches of rows from blocks. A block is read in a thread while the previous one is in use; a block whose rows
    have all been used is not read. `block_rows`: the number of rows in each block."""

    contiguous = True

    def __init__(self, block_rows: Any, data: str, *, batch_size: int, seed: int, shuffle: bool, batch_format: Format):
        if batch_format not in get_args(Format):
            raise SpecError(f"batch_format: got {shown(batch_format)}; expected {', '.join(get_args(Format))}")
        self._format = batch_format
        self._block_rows = np.asarray(block_rows, dtype=np.int64)
        super().__init__(int(self._block_rows.sum()), data, batch_size=batch_size, seed=seed, shuffle=shuffle)

    @abstractmethod
    def _read(self, block: int) -> Any:
        """The rows of a block, as a pyarrow table. Called in a thread."""

    def _batches(self, plan: Plan) -> Generator[Any]:
        epoch = plan.position.epoch
        blocks = self._in_order(len(self._block_rows), epoch)
        starts = [0, *np.cumsum(self._block_rows[blocks]).tolist()]

        def load(place: int) -> Any:
            return self._shuffled(int(blocks[place]), epoch)

        steps, ahead = itertools.tee(self._pieces(plan, starts))
        with closing(_read_ahead(load, _places(ahead))) as tables:
            place, table = -1, pa.table({})
            for pieces in steps:
                parts = []
                for at, first, end in pieces:
                    if at != place:
                        place, table = next(tables)
                    parts.append(table.slice(first, end - first))
                yield self._batch(parts or [load(0).slice(0, 0)])

    def _pieces(self, plan: Plan, starts: list[int]) -> Iterator[list[Piece]]:
        """For each step, where this rank's rows are. `starts`: the position at which each block begins."""
        for step in range(plan.steps):
            pieces = []
            for start, stop in plan.left.between(*plan.offsets(step, self._rank)):
                place = bisect_right(starts, start) - 1
                while start < stop:
                    begin, end = starts[place], min(stop, starts[place + 1])
                    if start < end:
                        pieces.append((place, start - begin, end - begin))
                    start, place = end, place + 1
            yield pieces

    def _in_order(self, size: int, *key: int) -> np.ndarray[Any, Any]:
        numbers = np.arange(size)
        return Permutation(size, self._order["seed"], *key)(numbers) if self._order["shuffle"] else numbers

    def _shuffled(self, block: int, epoch: int) -> Any:
        table, rows = self._read(block), int(self._block_rows[block])
        if table.num_rows != rows:
            raise SpecError(
                f"rows: got {table.num_rows:,} rows in a block that had {rows:,} when the training began;"
                " expected data that does not change"
            )
        if not self._order["shuffle"]:
            return table
        return BlockAccessor.for_block(table).take(pa.array(self._in_order(rows, epoch, block)))

    def _batch(self, parts: list[Any]) -> Any:
        table = parts[0]
        if len(parts) > 1:  # converting a column in one piece is faster
            table = pa.concat_tables(parts, promote_options="default").combine_chunks()
        return BlockAccessor.for_block(table).to_batch_format(self._format)


def _places(steps: Iterable[list[Piece]]) -> Iterator[int]:
    """The blocks in the order they are read."""
    last = -1
    for pieces in steps:
        for place, _, _ in pieces:
            if place != last:
                yield place
            last = place


def _read_ahead(load: Callable[[int], Any], places: Iterable[int]) -> Generator[tuple[int, Any]]:
    """Yield each place with its block, while the next block is being read."""
    ahead: tuple[int, Future[Any]] | None = None
    with ThreadPoolExecutor(1, thread_name_prefix="raytrain-rows") as pool:
        for place in places:
            reading = pool.submit(load, place)
            if ahead is not None:
                yield ahead[0], ahead[1].result()
            ahead = place, reading
        if ahead is not None:
            yield ahead[0], ahead[1].result()
