"""Where a training is in its data, without Ray: whatever is killed, every row of an epoch is used once."""

import json
import random
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from plugin_core.loops.rows.permutation import Permutation
from plugin_core.loops.rows.plan import Plan
from plugin_core.loops.rows.position import MAX_CUTS, MAX_PARTS, Position, left_of


def positions_of(plan: Plan, step: int, rank: int) -> list[int]:
    return [row for start, stop in plan.left.between(*plan.offsets(step, rank)) for row in range(start, stop)]


@pytest.mark.parametrize("contiguous", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_each_row_is_used_by_one_committed_step_whatever_is_killed(seed: int, contiguous: bool) -> None:
    """Twenty kills in each of forty trainings, at random steps; workers, batch size and checkpoint interval change."""
    draw = random.Random(seed)
    rows, kills = draw.randint(1, 400), 20
    used: Counter[tuple[int, int]] = Counter()
    committed = Position()
    while kills or committed.cuts:
        workers, batch_size, every = draw.randint(1, 7), draw.randint(1, 9), draw.randint(1, 6)
        lost: list[tuple[int, int]] = []
        for rows_of_step, now in training(rows, committed, workers, batch_size, contiguous, draw.randint(1, 40)):
            lost += rows_of_step
            if draw.randrange(every) == 0:
                committed = now
                used.update(lost)
                lost = []
        kills -= kills > 0
    assert used == Counter((epoch, row) for epoch in range(committed.epoch) for row in range(rows))


def training(
    rows: int, position: Position, workers: int, batch_size: int, contiguous: bool, steps: int
) -> Iterator[tuple[list[tuple[int, int]], Position]]:
    """The rows that each step uses, with the position after it, up to a kill after so many steps. The end of an epoch is a
    step without rows."""
    while steps > 0:
        plan = Plan(rows, position, workers, batch_size, contiguous=contiguous)
        done = 0
        for step in range(min(plan.steps, steps)):
            batches = [positions_of(plan, step, rank) for rank in range(workers)]
            assert all(batches) or sum(map(len, batches)) < workers, "no rank is idle while there are enough rows"
            assert max(map(len, batches)) <= batch_size + 1
            assert plan.after(step).left(rows) == position.left(rows) - sum(map(len, batches)) - done
            done += sum(map(len, batches))
            yield [(position.epoch, row) for batch in batches for row in batch], plan.after(step)
        steps -= plan.steps + 1
        if steps >= 0:
            position = Position(position.epoch + 1)
            yield [], position


@pytest.mark.parametrize("numbers", [(2, 1, 2), (4, 3), (1, 7, 3), (3, 3, 3)])
@pytest.mark.parametrize("contiguous", [False, True])
def test_the_number_of_workers_changes(numbers: tuple[int, ...], contiguous: bool) -> None:
    position, used = Position(), Counter[int]()
    for number, workers in enumerate(numbers):
        plan = Plan(1_003, position, workers, 16, contiguous=contiguous)
        last = plan.steps if number == len(numbers) - 1 else 5
        for step in range(last):
            for rank in range(workers):
                used.update(positions_of(plan, step, rank))
        position = plan.after(last - 1)
    assert used == Counter(range(1_003))
    assert len(left_of(1_003, position)) == 0
    assert Plan(1_003, position, 4, 16, contiguous=contiguous).steps == 0


def test_a_resume_with_as_many_workers_takes_the_same_steps() -> None:
    whole = Plan(1_001, Position(), 3, 10, contiguous=True)
    steps = [[positions_of(whole, step, rank) for rank in range(3)] for step in range(whole.steps)]
    for at in range(whole.steps - 1):
        rest = Plan(1_001, whole.after(at), 3, 10, contiguous=True)
        assert len(rest.position.cuts) == 1
        assert [[positions_of(rest, step, rank) for rank in range(3)] for step in range(rest.steps)] == steps[at + 1 :]


def test_each_rank_reads_one_part_of_the_order() -> None:
    plan = Plan(10_000, Position(), 4, 10, contiguous=True)
    for rank in range(4):
        read = [row for step in range(plan.steps) for row in positions_of(plan, step, rank)]
        assert read == list(range(rank * 2_500, (rank + 1) * 2_500))


def test_fewer_rows_than_workers_are_one_step_in_which_some_have_none() -> None:
    for contiguous in (True, False):
        plan = Plan(100, Position().with_cut(1, 97), 5, 8, contiguous=contiguous)
        assert plan.steps == 1
        assert [len(positions_of(plan, 0, rank)) for rank in range(5)] == [1, 1, 1, 0, 0]


@pytest.mark.slow
def test_a_position_stays_small_however_often_the_number_of_workers_changes() -> None:
    """A billion rows, 90 kills, each with another number of workers up to 512."""
    rows, draw, position, largest = 10**9, random.Random(1), Position(), 0
    for _ in range(90):
        plan = Plan(rows, position, draw.choice([1, 2, 3, 64, 511, 512]), 32, contiguous=True)
        position = plan.after(draw.randrange(min(plan.steps, 100)))
        largest = max(largest, len(json.dumps(position.cuts)))
    assert largest <= 2_000
    assert len(position.cuts) == MAX_CUTS
    assert len(left_of(rows, position)) == position.left(rows)
    assert len(left_of(rows, position).starts) <= MAX_PARTS + MAX_CUTS


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 17, 64, 1_000, 65_537])
def test_an_order_has_every_row_once(size: int) -> None:
    for epoch in range(3):
        assert sorted(Permutation(size, 7, epoch)(np.arange(size))) == list(range(size))


def test_an_order_is_the_same_everywhere() -> None:
    """These numbers may never change: trainings that are resumed after an update rely on it."""
    for size in (1, 2, 5, 256, 257, 20_000):
        assert np.array_equal(Permutation(size, 7, 1).whole(), Permutation(size, 7, 1)(np.arange(size)))
    assert Permutation(10, 0, 0)(np.arange(10)).tolist() == [4, 8, 9, 6, 3, 1, 5, 2, 7, 0]
    assert Permutation(10**9, 3, 5)(np.array([0, 1, 10**9 - 1])).tolist() == [614996811, 471052113, 966361798]
    parts = [Permutation(1_000, 0, 0)(np.arange(start, start + 100)) for start in range(0, 1_000, 100)]
    assert np.array_equal(np.concatenate(parts), Permutation(1_000, 0, 0)(np.arange(1_000)))


@pytest.mark.parametrize("size", [3, 5, 12])
def test_an_order_is_random(size: int) -> None:
    """Over many epochs each row comes at each place equally often, and with each follower: within five deviations."""
    epochs = 4_000
    orders = np.array([Permutation(size, 1, epoch)(np.arange(size)) for epoch in range(epochs)])
    places = np.array([np.bincount(orders[:, place], minlength=size) for place in range(size)])
    assert np.abs(places - epochs / size).max() < 5 * np.sqrt(epochs / size)
    pairs = np.bincount((orders[:, :-1] * size + orders[:, 1:]).ravel(), minlength=size * size).reshape(size, size)
    expected = epochs * (size - 1) / (size * (size - 1))
    assert np.abs(pairs[~np.eye(size, dtype=bool)] - expected).max() < 5 * np.sqrt(expected)


def test_an_order_of_many_rows_has_no_pattern() -> None:
    order = Permutation(100_000, 1)(np.arange(100_000)).astype(float)
    for lag in (1, 2, 16, 256):
        assert abs(np.corrcoef(order[:-lag], order[lag:])[0, 1]) < 5 / np.sqrt(100_000)
