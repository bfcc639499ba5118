"""What resumable rows cost compared with bare loaders: `make bench-rows`, or `python -m benchmarks.rows [ROWS]`.

One process reads an epoch and does nothing with the batches, both ways in turn, several times; the medians count. To
show what that means in a training, the step of a small model is timed too:

    items     a list comprehension over a shuffled order in memory
    torch     torch's DataLoader with shuffle=True
    parquet   row groups in a random order, each shuffled in memory, read ahead by one; the same without resuming

Then what a resume at 90 % of an epoch reads, and the size of a position in a billion rows.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import ray.train
import torch
from ray.data.block import BlockAccessor
from rich.console import Console
from rich.table import Table

from plugin_core.loops import rows
from plugin_core.loops.rows.plan import Plan
from plugin_core.loops.rows.position import Position

BATCH, GROUP, TIMES = 128, 20_000, 7


class Pictures(torch.utils.data.Dataset[Any]):
    """Rows of 3 kB in memory: smaller than most, so the difference weighs more than in a training."""

    def __init__(self, size: int):
        self.size, self.picture = size, torch.zeros(3, 32, 32, dtype=torch.uint8)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, row: int) -> tuple[Any, int]:
        return self.picture, row


def bare_items(items: list[str]) -> Iterator[list[str]]:
    order = np.random.default_rng(0).permutation(len(items)).tolist()
    for start in range(0, len(order), BATCH):
        yield [items[row] for row in order[start : start + BATCH]]


def bare_parquet(file: str) -> Iterator[dict[str, Any]]:
    parquet, random = pyarrow.parquet.ParquetFile(file, pre_buffer=True), np.random.default_rng(0)

    def shuffled(group: int) -> Any:
        table = parquet.read_row_group(group)
        return BlockAccessor.for_block(table).take(pa.array(random.permutation(table.num_rows)))

    with ThreadPoolExecutor(1) as pool:
        groups = random.permutation(parquet.num_row_groups).tolist()
        ahead = pool.submit(shuffled, groups[0])
        for following in [*groups[1:], None]:
            table = ahead.result()
            if following is not None:
                ahead = pool.submit(shuffled, following)
            for start in range(0, table.num_rows, BATCH):
                yield BlockAccessor.for_block(table.slice(start, BATCH)).to_batch_format("numpy")


def main(size: int) -> None:
    items, pictures = [str(row) for row in range(size)], Pictures(size // 4)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, alone():
        file = str(Path(folder, "rows.parquet"))
        numbers = np.random.default_rng(0)
        table = pa.table({"text": items, **{f"x{column}": numbers.random(size) for column in range(20)}})
        pyarrow.parquet.write_table(table, file, row_group_size=GROUP)
        ways: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
            "items": (lambda: bare_items(items), lambda: rows.from_items(items, batch_size=BATCH)),
            "torch": (
                lambda: torch.utils.data.DataLoader(pictures, BATCH, shuffle=True),
                lambda: rows.from_torch(pictures, batch_size=BATCH),
            ),
            "parquet": (lambda: bare_parquet(file), lambda: rows.read_parquet(file, batch_size=BATCH)),
        }
        step = step_seconds()
        title = f"batches of {BATCH}, a step of {step * 1000:.1f} ms; CPU time"
        shown = Table("", "rows", "bare, s", "resumable, s", "more, ns a row", "more, % of an epoch", title=title)
        for name, pair in ways.items():
            count = len(pictures) if name == "torch" else size
            bare, ours, more = in_turn(*pair)
            cells = f"{count:,}", f"{bare:.3f}", f"{ours:.3f}", f"{more / count * 1e9:.0f}"
            shown.add_row(name, *cells, f"{more / (bare + step * count / BATCH) * 100:.2f}")
        Console().print(shown)
        print(f"parquet: a resume at 90 % reads {groups_of_a_resume(file, size)} of {-(-size // GROUP)} row groups")
    plan = Plan(10**9, Position().with_cut(1_024, 12_345), 1_000, 32, contiguous=True)
    print(f"a position in 10⁹ rows after 1,024 and 1,000 workers: {len(json.dumps(plan.after(999).cuts))} bytes")


def in_turn(bare: Callable[[], Any], ours: Callable[[], Any]) -> tuple[float, float, float]:
    """The median seconds of both, and of the difference per turn."""
    times = [(seconds(bare), seconds(ours)) for _ in range(TIMES + 1)][1:]
    more = statistics.median(one - other for other, one in times)
    return statistics.median(t for t, _ in times), statistics.median(t for _, t in times), more


def step_seconds() -> float:
    """One step of a model with 70,000 weights on 20 numbers per row: far smaller than models trained on several
    workers."""
    torch.set_num_threads(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(20, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.Linear(256, 1)
    )
    optimizer, batch = torch.optim.SGD(model.parameters(), lr=0.1), torch.zeros(BATCH, 20)

    def steps() -> Iterator[None]:
        for _ in range(200):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
            yield

    return statistics.median(seconds(steps) for _ in range(TIMES)) / 200


def seconds(make: Callable[[], Any]) -> float:
    """CPU seconds of this process, including its threads; the load of other processes does not count."""
    began = time.process_time()
    for _ in make():
        pass
    return time.process_time() - began


def groups_of_a_resume(file: str, size: int) -> int:
    from plugin_core.loops.rows.parquet import ParquetRows

    read = []
    once = ParquetRows._read
    batches = rows.read_parquet(file, batch_size=BATCH)
    batches._began = batches.position.with_cut(1, size * 9 // 10)
    with patch.object(ParquetRows, "_read", lambda self, block: (read.append(block), once(self, block))[1]):
        for _ in batches:
            pass
    return len(read)


def alone() -> Any:
    """A training with one worker and no checkpoint, for loops outside a training."""

    class Context:
        def get_world_rank(self) -> int:
            return 0

        def get_world_size(self) -> int:
            return 1

    return patch.multiple(ray.train, get_context=Context, get_checkpoint=lambda: None)


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 400_000)
