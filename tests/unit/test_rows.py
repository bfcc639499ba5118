"""Batches that continue where a checkpoint was made, of every source, with ranks played by turns in one process."""

import multiprocessing.connection
import multiprocessing.reduction
import multiprocessing.resource_sharer
import os
import signal
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow.fs
import pytest
import ray.train
import torch

from plugin_core.errors import InfrastructureError, SpecError, UserCodeError
from plugin_core.errors.classify import classify
from plugin_core.loops import rows, sharded
from plugin_core.loops import torch as loop
from tests.support.played_training import ROWS, Training, make_files

# not from this process: Prefect's log, which other tests have used, ends each process that is forked from it with an error
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload([__name__])


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Training:
    return Training(tmp_path).play(monkeypatch)


class Squares(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"id": row, "pair": (torch.ones(2), f"row {row}")}


class Deadly(Squares):
    def __getitem__(self, row: int) -> dict[str, Any]:
        if row == 50:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(row)


Make = Callable[[], rows.ResumableRows]


def sources(folder: Path, **options: Any) -> dict[str, tuple[Make, Callable[[Any], list[int]]]]:
    files = str(make_files(folder))
    return {
        "items": (lambda: rows.from_items(range(ROWS), **options), list),
        "torch": (lambda: rows.from_torch(Squares(), **options), lambda batch: batch["id"].tolist()),
        "parquet": (lambda: rows.read_parquet(files, **options), lambda batch: batch["id"].tolist()),
    }


def step(ranks: list[Iterator[Any]], ids: Callable[[Any], list[int]]) -> list[int] | None:
    """One batch of each rank; None at the end of the epoch, which is the same for all."""
    batches = [next(each, None) for each in ranks]
    assert len({batch is None for batch in batches}) == 1, "the ranks take equally many steps"
    return None if batches[0] is None else [row for batch in batches for row in ids(batch)]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("source", ["items", "torch", "parquet"])
def test_every_row_is_used_once_an_epoch_over_kills_and_changes_of_the_workers(
    run: Training, tmp_path: Path, source: str, shuffle: bool
) -> None:
    make, ids = sources(tmp_path, batch_size=4, shuffle=shuffle)[source]
    used: dict[int, Counter[int]] = {0: Counter(), 1: Counter(), 2: Counter()}
    for workers, steps in [(2, 5), (1, 3), (2, 2), (4, 3), (3, 9), (5, 4), (2, 9), (3, 20), (2, 1000)]:
        ranks = run.ranks(make, workers)
        pending: list[tuple[int, list[int]]] = []
        while steps and ranks[0].epoch < 3:
            epoch, reading = ranks[0].epoch, [iter(each) for each in ranks]
            while steps and (batch := step(reading, ids)) is not None:
                steps -= 1
                pending.append((epoch, batch))
                if steps % 3 == 0:
                    run.save(ranks)
                    for number, taken in pending:
                        used[number].update(taken)
                    pending = []
            for each in reading:
                each.close()  # type: ignore[attr-defined]
        if ranks[0].epoch == 3:
            for number, taken in pending:
                used[number].update(taken)
            run.save(ranks)
    assert all(counts == Counter(range(ROWS)) for counts in used.values()), used
    assert len(Path(run.checkpoint.path, "rows.json").read_bytes()) < 2_000


@pytest.mark.parametrize("source", ["items", "torch", "parquet"])
def test_epochs_are_shuffled_each_in_its_own_way_and_by_the_seed(run: Training, tmp_path: Path, source: str) -> None:
    def epochs(**options: Any) -> list[list[int]]:
        make, ids = sources(tmp_path, batch_size=10, **options)[source]
        batches = make()
        return [[row for batch in batches for row in ids(batch)] for _ in range(2)]

    one, two = epochs()
    assert one != two != sorted(two)
    assert epochs() == [one, two]
    assert epochs(seed=1) != [one, two]
    assert epochs(shuffle=False) == [list(range(ROWS))] * 2


def test_a_loop_continues_behind_its_last_batch_after_a_break(run: Training) -> None:
    batches = rows.from_items(range(10), batch_size=4, shuffle=False)
    assert next(iter(batches)) == [0, 1, 2, 3]
    assert (batches.epoch, batches.used, len(batches)) == (0, 4, 2)
    assert list(batches) == [[4, 5, 6, 7], [8, 9]]
    assert (batches.epoch, batches.used, len(batches)) == (1, 0, 3)
    first, second = iter(batches), iter(batches)
    next(first)
    next(second)
    with pytest.raises(RuntimeError, match="got a second loop over these batches; expected one loop at a time"):
        next(first)


def test_what_follows_the_last_batch_of_an_epoch_is_done_again_without_a_batch(run: Training) -> None:
    """A checkpoint after the last step, then a kill: the scheduler's step and the validation must not be left out."""
    batches = rows.from_items(range(8), batch_size=4)
    for _ in batches:
        run.save([batches])
    again = rows.from_items(range(8), batch_size=4)
    assert (again.epoch, len(again), list(again)) == (0, 0, [])
    assert again.epoch == 1
    run.save([again])
    assert len(rows.from_items(range(8), batch_size=4)) == 2


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_what_a_data_loader_has_read_ahead_is_not_used(run: Training, workers: int, persistent: bool) -> None:
    options: dict[str, Any] = {"batch_size": 5, "num_workers": workers, "persistent_workers": persistent and workers > 0}
    if workers:
        options |= {"prefetch_factor": 4, "multiprocessing_context": FORKED}
    used: list[int] = []
    for steps in (3, 7, 100):
        batches = rows.from_torch(Squares(), **options)
        for _, batch in zip(range(steps), batches, strict=False):
            used += batch["id"].tolist()
        run.save([batches])
        if steps == 7:  # in the same process too, and with the same workers of the DataLoader
            used += next(iter(batches))["id"].tolist()
            run.save([batches])
    assert sorted(used) == list(range(ROWS))
    gone = weakref.ref(batches)
    del batches
    assert gone() is None, "a circle of references; see `_indices`"


def test_a_killed_process_of_a_data_loader_is_an_infrastructure_failure(run: Training) -> None:
    """The loss shows as torch's words, or in its socket if the loop was just taking a batch's tensors from the process."""
    # a child of this process would raise once more, wherever this process is when it gets the signal
    batches = rows.from_torch(Deadly(), batch_size=5, num_workers=1, multiprocessing_context=FORKED, shuffle=False)
    with pytest.raises((RuntimeError, OSError, EOFError)) as caught:
        list(batches)
    assert isinstance(classify(caught.value), InfrastructureError)
    assert batches.used <= 50


@pytest.mark.parametrize("error", [ConnectionRefusedError, ConnectionResetError, EOFError, FileNotFoundError])
def test_tensors_of_a_killed_process_are_an_infrastructure_failure(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    tensors = multiprocessing.reduction.DupFd(0)
    with monkeypatch.context() as patch:
        patch.setattr(multiprocessing.connection, "Client", Mock(side_effect=error))
        with pytest.raises(error) as caught:
            tensors.detach()
    multiprocessing.resource_sharer.stop()
    assert isinstance(classify(caught.value), InfrastructureError)
    assert isinstance(classify(error()), UserCodeError if error in (EOFError, FileNotFoundError) else InfrastructureError)


@pytest.mark.parametrize("source", ["items", "torch", "parquet"])
def test_a_rank_without_rows_gets_an_empty_batch(run: Training, tmp_path: Path, source: str) -> None:
    make, ids = sources(tmp_path, batch_size=25)[source]
    (batches,) = run.ranks(make, 1)
    for _, _batch in zip(range(4), batches, strict=False):
        run.save([batches])
    ranks = [list(each) for each in run.ranks(make, 5)]
    assert [[len(ids(batch)) for batch in each] for each in ranks] == [[1], [1], [1], [0], [0]]
    if source == "torch":
        pair = ranks[4][0]["pair"]
        assert (pair[0].shape, pair[1]) == ((0, 2), [])
    if source == "parquet":
        assert ranks[4][0].keys() == {"id", "text"}


def test_used_blocks_are_not_read_and_most_are_read_by_one_rank(
    run: Training, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from plugin_core.loops.rows.parquet import ParquetRows

    read: list[int] = []
    once = ParquetRows._read
    monkeypatch.setattr(ParquetRows, "_read", lambda self, block: (read.append(block), once(self, block))[1])
    files = str(make_files(tmp_path))
    ranks = run.ranks(lambda: rows.read_parquet(files, batch_size=5), 2)
    reading: list[Any] = [iter(each) for each in ranks]
    for _ in range(8):
        step(reading, lambda batch: list(batch["id"]))
    run.save(ranks)
    for each in reading:
        each.close()  # and waits for what it reads ahead
    read.clear()
    for each in run.ranks(lambda: rows.read_parquet(files, batch_size=5), 2):
        list(each)
    assert len(read) <= 5, "of 12 blocks those with the 23 rows that are left"


def test_parquet_in_every_format_and_by_columns_from_a_filesystem(run: Training, tmp_path: Path) -> None:
    place = make_files(tmp_path)
    there = pyarrow.fs.SubTreeFileSystem(str(place), pyarrow.fs.LocalFileSystem())
    options: dict[str, Any] = {"filesystem": there, "columns": ["id"], "batch_size": 40}
    for paths in ("", ["a.parquet", "b", "d.parquet"]):
        (table, *_) = rows.read_parquet(paths, batch_format="pyarrow", **options)
        assert (table.column_names, table.num_rows) == (["id"], 40)
    (frame, *_) = rows.read_parquet(str(place), batch_size=40, batch_format="pandas")
    assert list(frame.columns) == ["id", "text"]
    (batch, *_) = rows.read_parquet(str(place), batch_size=40)
    assert [f"row {row}" for row in batch["id"]] == batch["text"].tolist()


def test_a_file_that_changes_while_it_is_read_is_refused(run: Training, tmp_path: Path) -> None:
    place = make_files(tmp_path)
    batches = rows.read_parquet(str(place / "a.parquet"), batch_size=5)
    batches._block_rows = batches._block_rows + 1  # type: ignore[attr-defined]
    with pytest.raises(SpecError, match="rows: got 10 rows in a block that had 11 when the training began; expected data"):
        list(batches)


@pytest.mark.parametrize("module", [loop, sharded])
def test_a_report_keeps_the_position_with_the_model(run: Training, monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
    def report(metrics: dict[str, Any], checkpoint: Any = None) -> None:
        if checkpoint is not None:
            checkpoint.to_directory(run.folder / "checkpoint")
            run.checkpoint = ray.train.Checkpoint.from_directory(run.folder / "checkpoint")

    monkeypatch.setattr(ray.train, "report", report)
    model = torch.nn.Linear(1, 1)
    batches = rows.from_items(range(10), batch_size=4, shuffle=False)
    for number, _ in enumerate(batches):
        module.report({"step": number}, model, rows=batches, checkpoint=number == 1)
    again = rows.from_items(range(10), batch_size=4, shuffle=False)
    assert module.restore(torch.nn.Linear(1, 1)) == {"step": 1}
    assert list(again) == [[8, 9]]
