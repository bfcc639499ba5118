"""Data that cannot be resumed exactly, and positions that do not fit it, are refused in one sentence."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
import ray.train
import torch

from plugin_core import parse_spec
from plugin_core.errors import SpecError, StorageError
from plugin_core.loops import rows
from tests.support.played_training import Training, make_files

Make = Callable[[], rows.ResumableRows]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Training:
    return Training(tmp_path).play(monkeypatch)


WRONG: dict[str, tuple[Callable[[Path], Any], str]] = {
    "batch_size": (lambda _: rows.from_items([1], batch_size=0), "batch_size: got 0; expected a whole number from 1"),
    "a bool": (lambda _: rows.from_items([1], batch_size=True), "batch_size: got True; expected"),
    "seed": (lambda _: rows.from_items([1], batch_size=1, seed=-1), "seed: got -1; expected a whole number from 0"),
    "shuffle": (lambda _: rows.from_items([1], batch_size=1, shuffle=1), "shuffle: got 1; expected True or False"),  # type: ignore[arg-type]
    "no rows": (lambda _: rows.from_items([], batch_size=1), "dataset: got no rows; expected at least one"),
    "a generator": (lambda _: rows.from_items(iter([]), batch_size=1), "which has no length or cannot be read by index"),  # type: ignore[arg-type]
    "a set": (lambda _: rows.from_items({1}, batch_size=1), "expected a map-style dataset: one with __len__"),  # type: ignore[arg-type]
    "iterable": (
        lambda _: rows.from_torch(torch.utils.data.ChainDataset([]), batch_size=1),
        "dataset: got ChainDataset, an IterableDataset, which cannot be read from the middle; expected a map-style",
    ),
    "drop_last": (
        lambda _: rows.from_torch([1], batch_size=1, drop_last=True),
        "drop_last: got True; expected none: no row",
    ),
    "a sampler": (lambda _: rows.from_torch([1], batch_size=1, sampler=[0]), "sampler: got [0]; expected none: the order"),
    "format": (
        lambda folder: rows.read_parquet(str(make_files(folder)), batch_size=1, batch_format="torch"),  # type: ignore[arg-type]
        "batch_format: got 'torch'; expected numpy, pandas, pyarrow",
    ),
    "columns": (
        lambda folder: rows.read_parquet(str(make_files(folder)), batch_size=1, columns=["txt"]),
        "(did you mean text?)",
    ),
    "no files": (lambda folder: rows.read_parquet(str(folder), batch_size=1), "which has no parquet files; expected files"),
    "no paths": (lambda folder: rows.read_parquet([], batch_size=1), "paths: got []; expected a list of paths"),
    "one column": (
        lambda folder: rows.read_parquet(str(make_files(folder)), batch_size=1, columns="id"),  # type: ignore[arg-type]
        "columns: got 'id'; expected a list of columns",
    ),
    "a wrong path": (lambda folder: rows.read_parquet("ftp://x/y", batch_size=1), "paths: got 'ftp://x/y'"),
    "no parquet": (
        lambda folder: rows.read_parquet(str(make_files(folder) / "_old.parquet"), batch_size=1),
        "expected readable parquet",
    ),
    "no rows in the files": (
        lambda folder: (
            pyarrow.parquet.write_table(pa.table({"id": []}), folder / "x.parquet"),
            rows.read_parquet(str(folder / "x.parquet"), batch_size=1),
        ),
        "dataset: got no rows",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_read_exactly_is_refused(run: Training, tmp_path: Path, case: str) -> None:
    make, words = WRONG[case]
    with pytest.raises(SpecError) as caught:
        make(tmp_path)
    assert words in caught.value.message
    assert "\n" not in caught.value.message


def stored(run: Training, changed: dict[str, Any]) -> None:
    batches = rows.from_items(range(10), batch_size=4)
    next(iter(batches))
    run.save([batches])
    file = Path(run.checkpoint.path, "rows.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), **changed}))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: rows.from_items(range(9), batch_size=4),
            "rows: got a dataset of 9 rows, and a checkpoint made with 10; expected the same data",
        ),
        (
            lambda: rows.from_items(range(10), batch_size=4, seed=1),
            "seed: got 1, and a checkpoint made with seed=0",
        ),
        (lambda: rows.from_items(range(10), batch_size=4, shuffle=False), "shuffle: got False, and a"),
    ],
)
def test_another_order_than_the_checkpoints_is_refused(run: Training, make: Make, words: str) -> None:
    stored(run, {})
    with pytest.raises(SpecError) as caught:
        make()
    assert words in caught.value.message


def test_other_files_of_as_many_rows_are_refused(run: Training, tmp_path: Path) -> None:
    place = make_files(tmp_path)
    batches = rows.read_parquet(str(place), batch_size=4)
    run.save([batches])
    (place / "d.parquet").rename(place / "e.parquet")
    with pytest.raises(SpecError, match="got as many rows as the checkpoint was made with, but different data; expected"):
        rows.read_parquet(str(place), batch_size=4)


@pytest.mark.parametrize(
    "changed",
    [
        {"epoch": -1},
        {"epoch": 1.5},
        {"epoch": 2**60},
        {"cuts": [[1, 11]]},
        {"cuts": [[0, 1]]},
        {"cuts": [[10**9, 1]]},
        {"cuts": [[1, 1]] * 65},
        {"cuts": [[1]]},
        {"cuts": [[1, True]]},
        {"cuts": "a" * 20_000},
        {"cuts": None},
        {"run": 5},
    ],
)
def test_a_damaged_position_is_refused(run: Training, changed: dict[str, Any]) -> None:
    stored(run, changed)
    with pytest.raises(StorageError, match=r"rows\.json is damaged"):
        rows.from_items(range(10), batch_size=4)


@pytest.mark.parametrize("content", [b"", b'{"rows": 10, "se', b"[" * 9_999, b"\xff\xfe"])
def test_a_half_written_position_is_refused(run: Training, content: bytes) -> None:
    stored(run, {})
    Path(run.checkpoint.path, "rows.json").write_bytes(content)
    with pytest.raises(StorageError, match=r"rows\.json is damaged") as caught:
        rows.from_items(range(10), batch_size=4)
    assert len(caught.value.message) < 500


def test_a_warm_start_begins_at_the_first_row(run: Training, tmp_path: Path) -> None:
    stored(run, {})
    run.folder = tmp_path / "another run"
    batches = rows.from_items(range(5), batch_size=4, seed=9)
    assert (batches.epoch, batches.used) == (0, 0)


def test_an_own_checkpoint_without_a_position_is_refused_and_another_runs_is_a_start(run: Training, tmp_path: Path) -> None:
    stored(run, {})
    Path(run.checkpoint.path, "rows.json").unlink()
    with pytest.raises(SpecError, match=r"has no rows\.json; expected one made with report\(…, rows=…\) or rows\.save"):
        rows.from_items(range(10), batch_size=4)
    run.folder = tmp_path / "another run"
    assert rows.from_items(range(10), batch_size=4).used == 0


def test_ranks_that_differ_are_refused(run: Training) -> None:
    ranks = run.ranks(lambda: rows.from_items(range(10), batch_size=2), 2)
    reading = [iter(each) for each in ranks]
    for each in (*reading, reading[1]):
        next(each)
    with pytest.raises(SpecError, match="rows: got used rows 8 on rank 1, and 4 on rank 0; expected the same data and the"):
        run.save(ranks)
    with pytest.raises(SpecError, match="rows: got rows 10 on rank 1, and 9 on rank 0"):
        run.ranks(lambda: rows.from_items(range(9 + run.rank), batch_size=2), 2)


TREES = {"framework": "xgboost", "params": {"eta": 1}, "label_column": "y"}
LOOP = {"framework": "python", "train_loop_per_worker": "devtools.loops:using_rows"}


@pytest.mark.parametrize(
    ("step", "dataset", "words"),
    [
        (LOOP, {"shard": False}, "resumable: got True with shard=False; expected one of the two"),
        (
            LOOP,
            {"shuffle_seed": 1},
            "resumable: got True with a shuffle_seed; expected the seed of rows.from_dataset_shard",
        ),
        (TREES, {}, "datasets.train.resumable: got True; expected False, since params train on all rows at once"),
    ],
)
def test_a_dataset_that_cannot_be_resumed_is_refused(step: dict[str, Any], dataset: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec({**step, "datasets": {"train": {"path": "x.csv", "resumable": True, **dataset}}})
    assert words in caught.value.message


def test_a_usual_dataset_shard_is_refused(run: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray.train, "get_dataset_shard", lambda name: object())
    with pytest.raises(SpecError, match=r"datasets\.train\.resumable: got False, so Ray Data decides while it reads which"):
        rows.from_dataset_shard("train", batch_size=1)
