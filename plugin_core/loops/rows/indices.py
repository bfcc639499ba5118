"""Data that is read row by row, in a random order over all of it: sequences, and torch's map-style datasets."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from plugin_core.errors import SpecError
from plugin_core.errors.shown import shown
from plugin_core.loops.rows.permutation import Permutation
from plugin_core.loops.rows.plan import Plan
from plugin_core.loops.rows.position import joined
from plugin_core.loops.rows.resumable import ResumableRows

#: How many rows' places in the order are computed at once: enough to make NumPy's overhead negligible.
_AT_ONCE = 65_536


class Items(ResumableRows):
    """Lists of the items of a sequence."""

    def __init__(self, items: Sequence[Any], *, batch_size: int, seed: int, shuffle: bool):
        self._items = items
        super().__init__(length(items), "items", batch_size=batch_size, seed=seed, shuffle=shuffle)

    def _batches(self, plan: Plan) -> Generator[list[Any]]:
        for indices in self._indices(plan)():
            # the loop in C: a comprehension takes a third longer, and this is most of what a list costs
            yield list(map(self._items.__getitem__, indices))

    def _indices(self, plan: Plan) -> Callable[[], Iterator[list[int]]]:
        return partial(
            _indices, plan, self._rank, self._batch_size, self._order["seed"] if self._order["shuffle"] else None
        )


def _indices(plan: Plan, rank: int, batch_size: int, seed: int | None) -> Iterator[list[int]]:
    """The indices of a rank's rows, for each step. `seed`: None keeps their order.

    It holds no reference to the rows object. A DataLoader in a reference cycle would be freed by the garbage collector,
    which closes the queues first; torch then waits 5 s for each of the DataLoader's processes.
    """
    order = None if seed is None else Permutation(plan.rows, seed, plan.position.epoch)
    per_chunk = max(1, _AT_ONCE // batch_size)
    for first in range(0, plan.steps, per_chunk):
        steps = [plan.offsets(step, rank) for step in range(first, min(first + per_chunk, plan.steps))]
        offsets = np.transpose(joined(*np.transpose(steps))).tolist()  # a single worker's steps become one range
        ranges = [each for start, stop in offsets for each in plan.left.between(start, stop)]
        positions = np.concatenate([np.arange(*each) for each in ranges]) if ranges else np.empty(0, np.int64)
        indices = (positions if order is None else order(positions)).tolist()
        taken = 0
        for start, stop in steps:
            yield indices[taken : taken + stop - start]
            taken += stop - start


def length(dataset: Any) -> int:
    """The number of rows. Raises SpecError for data that cannot be read by index."""
    try:
        rows = len(dataset)
    except TypeError:
        rows = None
    if rows is None or not hasattr(dataset, "__getitem__"):
        raise SpecError(
            f"dataset: got {shown(dataset)}, which has no length or cannot be read by index; expected a map-style dataset:"
            " one with __len__ and __getitem__"
        )
    return int(rows)
