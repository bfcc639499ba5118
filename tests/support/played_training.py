"""A stand-in for Ray Train, for the loops of all ranks taking turns in one process; and parquet files to read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import ray.train
import ray.train.collective

from plugin_core.loops import rows

ROWS = 103


class Training:
    """`rank` is the one whose turn it is."""

    def __init__(self, folder: Path):
        self.folder, self.rank, self.workers = folder / "run", 0, 1
        self.checkpoint: Any = None
        self.said: Any = None

    def get_world_rank(self) -> int:
        return self.rank

    def get_world_size(self) -> int:
        return self.workers

    def get_experiment_name(self) -> str:
        return self.folder.name

    def broadcast(self, data: Any) -> Any:
        if self.rank == 0:
            self.said = data
        return self.said

    def ranks(self, make: Callable[[], rows.ResumableRows], workers: int) -> list[rows.ResumableRows]:
        """The rows of each rank."""
        self.workers, made = workers, []
        for self.rank in range(workers):
            made.append(make())
        return made

    def save(self, ranks: list[rows.ResumableRows]) -> None:
        place = self.folder / "checkpoint"
        place.mkdir(parents=True, exist_ok=True)
        for self.rank, each in enumerate(ranks):
            each.check_ranks()
            each.save(place)
        self.checkpoint = ray.train.Checkpoint.from_directory(place)

    def play(self, patch: pytest.MonkeyPatch) -> "Training":
        patch.setattr(ray.train, "get_context", lambda: self)
        patch.setattr(ray.train, "get_checkpoint", lambda: self.checkpoint)
        patch.setattr(ray.train.collective, "broadcast_from_rank_zero", self.broadcast)
        return self


def make_files(folder: Path) -> Path:
    """Three files with row groups of 10 rows and fewer, and files that are not part of the dataset."""
    place = folder / "data"
    (place / "b").mkdir(parents=True, exist_ok=True)
    ids = np.arange(ROWS)
    for name, part in (("a", ids[:33]), ("b/c", ids[33:34]), ("d", ids[34:])):
        table = pa.table({"id": part, "text": [f"row {row}" for row in part]})
        pyarrow.parquet.write_table(table, place / f"{name}.parquet", row_group_size=10)
    (place / "_SUCCESS").touch()
    (place / "_old.parquet").write_text("no parquet")
    return place
