"""An iterator over a training's data that continues where a checkpoint was made."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Literal

from plugin_core.errors import SpecError
from plugin_core.errors.shown import shown
from plugin_core.loops.rows import stored
from plugin_core.loops.rows.plan import Plan
from plugin_core.loops.rows.position import Position
from plugin_core.loops.upload import own_checkpoint

#: The format of batches, as in `ray.data.Dataset.iter_batches`.
Format = Literal["numpy", "pandas", "pyarrow"]


class ResumableRows(ABC):
    """This rank's batches of the current epoch. Iterating yields those that are left, then moves on to the next epoch:

        for epoch in range(batches.epoch, 10):
            for batch in batches:
                ...

    A batch counts as used once it is handed out, so checkpoint after its step. After a `break`, the next iteration
    continues after the last batch. All ranks must create it, iterate it in lockstep, and report after the same step.

    `batch_size`: rows of one rank's batch. `seed` and `shuffle` fix the order of each epoch.
    """

    #: whether a rank reads one part of what is left, rather than a share of each step's rows
    contiguous = False

    def __init__(self, rows: int, data: str, *, batch_size: int, seed: int, shuffle: bool):
        import ray.train

        _check("batch_size", batch_size, 1)
        _check("seed", seed, 0)
        if not isinstance(shuffle, bool):
            raise SpecError(f"shuffle: got {shown(shuffle)}; expected True or False")
        if rows < 1:
            raise SpecError("dataset: got no rows; expected at least one")
        context = ray.train.get_context()
        self._rank, self._workers = context.get_world_rank(), context.get_world_size()
        self._batch_size = batch_size
        self._order: stored.Order = {"rows": rows, "seed": seed, "shuffle": shuffle, "data": data}
        self._began = stored.read(own_checkpoint(), self._order)
        self._done: tuple[Plan, int] | None = None
        self._iterations = 0
        self.check_ranks()

    @property
    def position(self) -> Position:
        """The position after the last batch that was handed out."""
        if self._done is None:
            return self._began
        plan, step = self._done
        return plan.after(step)

    @property
    def epoch(self) -> int:
        """The number of the current epoch, from 0."""
        return self.position.epoch

    @property
    def used(self) -> int:
        """How many rows of the current epoch were handed out, on all ranks together."""
        return self._order["rows"] - self.position.left(self._order["rows"])

    def __len__(self) -> int:
        """How many steps the rest of the current epoch takes."""
        return self._plan().steps

    def __iter__(self) -> Iterator[Any]:
        self._iterations += 1
        mine, plan, epoch = self._iterations, self._plan(), self.epoch
        if plan.steps:
            with contextlib.closing(self._batches(plan)) as batches:
                for step, batch in zip(range(plan.steps), batches, strict=True):
                    self._check_alone(mine)
                    self._done = plan, step
                    yield batch
        self._check_alone(mine)
        # not with the last batch: after a kill before its checkpoint, a loop must repeat its end-of-epoch work
        self._began, self._done = Position(epoch + 1), None

    def save(self, folder: str | Path) -> None:
        """Write the position into a checkpoint's folder: a small file, from rank 0 only."""
        if self._rank == 0:
            stored.write(folder, self._order, self.position)

    def check_ranks(self) -> None:
        """Raise SpecError on a rank whose data or position differs from rank 0's. All ranks must call it."""
        import ray.train.collective

        if self._workers == 1:
            return
        order = self._order
        mine = [*order.values(), self._batch_size, self.epoch, self.used]
        names = [*order, "batch_size", "epoch", "used rows"]
        theirs = ray.train.collective.broadcast_from_rank_zero(mine)
        for name, ours, first in zip(names, mine, theirs, strict=True):
            if ours != first:
                raise SpecError(
                    f"rows: got {name} {ours} on rank {self._rank}, and {first} on rank 0; expected the same data and the"
                    " same number of steps on every rank"
                )

    def _check_alone(self, iteration: int) -> None:
        if iteration != self._iterations:
            raise RuntimeError("rows: got a second loop over these batches; expected one loop at a time")

    def _plan(self) -> Plan:
        rows = self._order["rows"]
        return Plan(rows, self.position, self._workers, self._batch_size, contiguous=self.contiguous)

    @abstractmethod
    def _batches(self, plan: Plan) -> Generator[Any]:
        """This rank's batch for each step of the plan, which has at least one step."""


def _check(name: str, value: Any, least: int) -> None:
    if type(value) is not int or not least <= value < 2**53:
        raise SpecError(f"{name}: got {shown(value)}; expected a whole number from {least}")
