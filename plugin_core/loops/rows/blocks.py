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

        def with_order(place: int) -> tuple[int, Any]:
            block = int(blocks[place])
            rows = int(self._block_rows[block])
            return block, self._in_order(rows, epoch, block) if self._order["shuffle"] else None

        steps, ahead = itertools.tee(self._pieces(plan, starts))
        with closing(_read_ahead(self._shuffled, with_order, _places(ahead))) as tables:
            place, table = -1, pa.table({})
            for pieces in steps:
                parts = []
                for at, first, end in pieces:
                    if at != place:
                        place, table = next(tables)
                    parts.append(table.slice(first, end - first))
                yield self._batch(parts or [self._shuffled(*with_order(0)).slice(0, 0)])

    def _pieces(self, plan: Plan, starts: list[int]) -> Iterator[list[Piece]]:
        """For each step, where this rank's rows are. `starts`: the position at which each block begins."""
        # the offsets from `low` up to `high` are rows of one block, `ahead` further on in it; most steps are inside
        low = high = place = ahead = 0
        for step in range(plan.steps):
            start, stop = plan.offsets(step, self._rank)
            pieces = []
            while start < stop:
                if not low <= start < high:
                    first, end, position = plan.left.around(start)
                    place = bisect_right(starts, position) - 1
                    ahead = position - start - starts[place]
                    low, high = max(first, -ahead), min(end, starts[place + 1] - starts[place] - ahead)
                until = min(stop, high)
                pieces.append((place, start + ahead, until + ahead))
                start = until
            yield pieces

    def _in_order(self, size: int, *key: int) -> np.ndarray[Any, Any]:
        return Permutation(size, self._order["seed"], *key).whole() if self._order["shuffle"] else np.arange(size)

    def _shuffled(self, block: int, order: Any) -> Any:
        """The rows of a block, in an order if there is one. Called in a thread."""
        table, rows = self._read(block), int(self._block_rows[block])
        if table.num_rows != rows:
            raise SpecError(
                f"rows: got {table.num_rows:,} rows in a block that had {rows:,} when the training began;"
                " expected data that does not change"
            )
        return table if order is None else BlockAccessor.for_block(table).take(pa.array(order))

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


def _read_ahead(
    load: Callable[..., Any], arguments: Callable[[int], tuple[Any, ...]], places: Iterable[int]
) -> Generator[tuple[int, Any]]:
    """Yield each place with its block, while the next block is being read. The arguments are computed in the caller's
    thread: many short NumPy calls beside it would take the GIL from the loop each time."""
    ahead: tuple[int, Future[Any]] | None = None
    with ThreadPoolExecutor(1, thread_name_prefix="raytrain-rows") as pool:
        for place in places:
            reading = pool.submit(load, *arguments(place))
            if ahead is not None:
                yield ahead[0], ahead[1].result()
            ahead = place, reading
        if ahead is not None:
            yield ahead[0], ahead[1].result()
