"""Where a training is in its data, and what is left of an epoch. Pure: no Ray, no storage.

An epoch is an order of its rows; a *position* in this order is a number from 0. All ranks take their steps together, and
each can compute what all of them have used. So the state of a whole training is one small `Position`, and nothing is sent
between the ranks.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np

#: One cut of what was left of an epoch: the number of nearly equal parts, and how many rows each part has used.
Cut = tuple[int, int]

#: Limits on an epoch's cuts into more than one part. They keep a stored position below 2 KB, and finding what is left
#: of an epoch within a second, however often the number of workers changes.
MAX_CUTS, MAX_PARTS = 64, 32_768


@dataclass(frozen=True)
class Position:
    """The epoch's number, from 0, and its cuts so far: one for each number of workers that has read it."""

    epoch: int = 0
    cuts: tuple[Cut, ...] = ()

    def with_cut(self, parts: int, used: int) -> Position:
        """The position after `parts` parts of what is left have used `used` rows each.

        Another cut into the same number of parts yields the same parts, since their sizes still differ by at most one;
        so both are kept as one cut.
        """
        if self.cuts and self.cuts[-1][0] == parts:
            used += self.cuts[-1][1]
            return Position(self.epoch, (*self.cuts[:-1], (parts, used)))
        return Position(self.epoch, (*self.cuts, (parts, used)))

    def left(self, rows: int) -> int:
        """How many of an epoch's `rows` rows are left."""
        for parts, used in self.cuts:
            size, more = divmod(rows, parts)
            rows = (parts - more) * max(0, size - used) + more * max(0, size + 1 - used)
        return rows

    def allows(self, parts: int) -> bool:
        """Whether a cut into `parts` parts stays within the limits. A cut into one part always does, as long as every
        cut after it is into one part too."""
        if self.cuts and self.cuts[-1][0] == parts:
            return True
        return len(self.cuts) < MAX_CUTS - 1 and sum(parts for parts, _ in self.cuts) + parts < MAX_PARTS


class Ranges:
    """Ascending half-open ranges of positions, read as one sequence: an *offset* is a number from 0 in that sequence."""

    def __init__(self, starts: np.ndarray[Any, Any], stops: np.ndarray[Any, Any]):
        self.starts, self.stops = starts, stops
        self.offsets = np.concatenate([[0], np.cumsum(stops - starts)]).astype(np.int64)
        self._lists: tuple[list[int], list[int]] | None = None

    def __len__(self) -> int:
        """The number of positions in all ranges."""
        return int(self.offsets[-1])

    def _as_lists(self) -> tuple[list[int], list[int]]:
        """The starts and the offsets. Indexing an array makes a new number each time, ten times slower."""
        if self._lists is None:
            self._lists = self.starts.tolist(), self.offsets.tolist()
        return self._lists

    def around(self, offset: int) -> tuple[int, int, int]:
        """The offset's range, as offsets from the first up to the end, and the offset's position."""
        starts, offsets = self._as_lists()
        number = bisect_right(offsets, offset) - 1
        return offsets[number], offsets[number + 1], starts[number] + offset - offsets[number]

    def between(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The ranges of positions for the offsets from `start` up to `stop`."""
        starts, offsets = self._as_lists()
        found = []
        number = bisect_right(offsets, start) - 1
        while start < stop:
            end = min(stop, offsets[number + 1])
            first = starts[number] + start - offsets[number]
            found.append((first, first + end - start))
            start, number = end, number + 1
        return found

    def without(self, cut: Cut) -> Ranges:
        """What is left after these ranges are cut into parts and each part has used its first rows."""
        parts, used = cut
        bounds = part_bounds(len(self), parts)
        firsts = np.minimum(bounds[:-1] + used, bounds[1:])
        edges = np.unique(np.concatenate([self.offsets, firsts, bounds]))
        pieces = edges[:-1]
        part = np.searchsorted(bounds, pieces, "right") - 1
        kept = pieces >= firsts[part]
        home = np.searchsorted(self.offsets, pieces, "right") - 1
        starts = (self.starts[home] + pieces - self.offsets[home])[kept]
        stops = starts + np.diff(edges)[kept]
        return Ranges(*joined(starts, stops))


def part_bounds(rows: int, parts: int) -> np.ndarray[Any, Any]:
    """Where each part begins, and where the last one ends: the first `rows % parts` parts have one row more."""
    size, more = divmod(rows, parts)
    numbers = np.arange(parts + 1, dtype=np.int64)
    return numbers * size + np.minimum(numbers, more)


def left_of(rows: int, position: Position) -> Ranges:
    """What is left of the epoch of `rows` rows."""
    ranges = Ranges(np.array([0], dtype=np.int64), np.array([rows], dtype=np.int64))
    for cut in position.cuts:
        ranges = ranges.without(cut)
    return ranges


def joined(starts: np.ndarray[Any, Any], stops: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    """The same ranges, with adjacent ones joined."""
    apart = starts[1:] != stops[:-1]
    return starts[np.concatenate([[True], apart])[: len(starts)]], stops[np.concatenate([apart, [True]])[: len(stops)]]
