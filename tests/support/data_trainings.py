"""Trainings that read data, many at once on one cluster of 4 CPUs: there is room for one of them."""

import itertools
from pathlib import Path
from typing import Any

from devtools.chaos import Trail, spec_at
from plugin_core import ScalingConfig, TrainSpec

#: Two workers read their data: 3 CPUs, so of two such trainings one has to wait.
WAITING = "waiting for 3 CPUs; "


class DataTrainings:
    """Trainings that read a small file, each with a trail of its own."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.file = folder / "x.csv"
        self.file.write_text("x\n" + "\n".join(map(str, range(64))) + "\n")

    def spec(self, name: str, workers: int = 2, **fields: Any) -> TrainSpec:
        return spec_at(
            self.folder,
            self.trail(name).file,
            name,
            train_loop_per_worker="devtools.loops:reading",
            datasets={"train": str(self.file)},
            scaling_config=ScalingConfig(num_workers=workers),
            **fields,
        )

    def trail(self, name: str) -> Trail:
        return Trail(self.folder / f"{name}.jsonl")

    def times(self, name: str) -> tuple[float, float]:
        """When the first of its workers began to train, and the last one ended."""
        entries = [entry for rank in range(4) for entry in self.trail(name).entries(rank)]
        begun = [entry["time"] for entry in entries if entry["began"]]
        return min(begun), max(entry["time"] for entry in entries if not entry["began"])

    def check_one_at_a_time(self, names: list[str]) -> None:
        times = sorted(map(self.times, names))
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(times))
