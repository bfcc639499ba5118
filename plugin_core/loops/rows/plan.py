"""How the rest of an epoch is divided into steps: which rows each rank gets when. Pure, and the same on every rank."""

from __future__ import annotations

from plugin_core.loops.rows.position import Position, left_of, part_bounds


class Plan:
    """The rest of an epoch of `rows` rows in steps of `workers` batches.

    All ranks take `steps` steps, and each row is in one of their batches. Batches have `batch_size` rows; those of the last
    step have fewer, or one row more. None is empty, unless fewer rows than workers are left: these take a single step.

    `contiguous`: each rank reads one part of what is left, from start to end; for data that is read in blocks.
    Otherwise, and after too many changes in the number of workers, the ranks share the rows of each step.
    """

    def __init__(self, rows: int, position: Position, workers: int, batch_size: int, *, contiguous: bool):
        self.rows, self.position, self.workers = rows, position, workers
        self.left = left_of(rows, position)
        self.parts = workers if contiguous and position.allows(workers) else 1
        self._bounds = part_bounds(len(self.left), self.parts).tolist()
        #: rows that a part contributes to one step
        self._stride = batch_size * workers // self.parts
        sharing = workers // self.parts
        self.steps = _steps(len(self.left) // self.parts, self._stride, sharing) if len(self.left) else 0

    def offsets(self, step: int, rank: int) -> tuple[int, int]:
        """The rank's rows in a step: a half-open range of offsets in `left`."""
        part = rank if self.parts > 1 else 0
        start = self._bounds[part] + step * self._stride
        last = step + 1 == self.steps
        stop = self._bounds[part + 1] if last else start + self._stride
        if self.parts > 1 or self.workers == 1:
            return start, stop
        size, more = divmod(stop - start, self.workers)
        return start + rank * size + min(rank, more), start + (rank + 1) * size + min(rank + 1, more)

    def after(self, step: int) -> Position:
        """The training's position once this step is done."""
        if step + 1 < self.steps:
            return self.position.with_cut(self.parts, (step + 1) * self._stride)
        return self.position.with_cut(self.parts, self._bounds[1])


def _steps(rows: int, stride: int, ranks: int) -> int:
    """How many steps it takes to use a part of `rows` rows, `stride` at a time, by `ranks` ranks. A last step that
    would leave a rank without a row is merged into the one before."""
    full, rest = divmod(rows, stride)
    return max(1, full + (rest >= ranks if full else 1))
