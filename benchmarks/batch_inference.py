"""What batch inference costs: `make bench-inference`, or `python -m benchmarks.batch_inference [ROWS [ROUNDS]]`.

The digits' network over generated images, three ways in turn in each round: as a step; as a bare Ray Data program on the
same Ray head with the same predictor, batch size and pool; as a loop of torch and pyarrow in two processes, without Ray.
Each runs on ROWS and on ROWS / 5 rows: the difference between the two times gives the rows per second without one-time
costs (the start of a job and of an actor, imports). The ways of a round are compared; medians. Then the memory of a step
over a dataset four times the object store.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.overhead import ROOT, in_turn
from devtools.ray_heads import Memory, OwnHead
from example_flows import digits_steps as steps
from plugin_core import BatchInferSpec, RunConfig, run

BATCH = 1024
ACTORS = 2

RAY_DATA = """
import sys
import ray
import ray.data
import ray.train
from example_flows.digits_steps import Predictor
rows, checkpoint, output, batch, actors = sys.argv[1:]
ray.init(log_to_driver=False)
ray.data.DataContext.get_current().enable_progress_bars = False
found = ray.train.Checkpoint.from_directory(checkpoint)
data = ray.data.read_parquet(rows).map_batches(
    Predictor, fn_constructor_args=(found,), batch_size=int(batch), batch_format="numpy",
    compute=ray.data.ActorPoolStrategy(size=int(actors)), num_cpus=1,
)
data.select_columns(["prediction"]).write_parquet(output)
"""

LOOP = """
import multiprocessing, sys
from pathlib import Path

def part(number):
    import pyarrow, pyarrow.dataset, pyarrow.parquet, torch
    from example_flows.digits_steps import Predictor
    from ray.train import Checkpoint
    rows, checkpoint, output, batch, processes = sys.argv[1:]
    torch.set_num_threads(1)
    predict = Predictor(Checkpoint.from_directory(checkpoint))
    files = sorted(str(file) for file in Path(rows).iterdir())[number :: int(processes)]
    schema = pyarrow.schema([("prediction", "int64")])
    with pyarrow.parquet.ParquetWriter(Path(output, f"part-{number}.parquet"), schema) as writer:
        for read in pyarrow.dataset.dataset(files).to_batches(batch_size=int(batch)):
            image = read["image"].flatten().to_numpy().reshape(len(read), -1)
            writer.write_table(pyarrow.table({"prediction": predict({"image": image})["prediction"]}))

Path(sys.argv[3]).mkdir()
processes = [multiprocessing.get_context("fork").Process(target=part, args=(number,)) for number in range(int(sys.argv[5]))]
for process in processes:
    process.start()
for process in processes:
    process.join()
sys.exit(max(abs(process.exitcode) for process in processes))
"""


def main(rows: int = 5_000_000, rounds: int = 5) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        checkpoint = make_checkpoint(folder)
        sizes = (rows // 5, rows)
        data = {size: make_images(folder / f"images-{size}", size) for size in sizes}
        taken: dict[str, list[list[float]]] = {way: [] for way in WAYS}
        for number in range(rounds + 1):  # the first one: files in the page cache
            for way in in_turn(WAYS, number):
                outputs = folder / f"{number}-{WAYS[way].__name__}"
                times = [WAYS[way](data[size], checkpoint, outputs / str(size)) for size in sizes[: 1 if not number else 2]]
                if number:
                    taken[way].append(times)
                shutil.rmtree(outputs)
        show(sizes, taken)
        show_memory(folder, checkpoint)


def make_checkpoint(folder: Path) -> str:
    import torch

    place = folder / "checkpoint"
    place.mkdir()
    torch.save({"model": steps.build_model().state_dict()}, place / "state.pt")
    return str(place)


def make_images(folder: Path, rows: int, parts: int = 10) -> str:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    for part in range(parts):
        pixels = np.random.default_rng(part).random((rows // parts, 64), dtype=np.float32)
        image = pa.FixedSizeListArray.from_arrays(pa.array(pixels.reshape(-1)), 64)
        pq.write_table(pa.table({"image": image}), folder / f"part-{part}.parquet", row_group_size=20_000)
    return str(folder)


def step(data: str, checkpoint: str, output: Path) -> float:
    with a_head() as head:
        began = time.monotonic()
        run(spec_of(data, checkpoint, output), head.cluster(), progress=False)
        return time.monotonic() - began


def a_head() -> contextlib.closing[OwnHead]:
    """Running only meanwhile: an idle head takes a share of a core."""
    return contextlib.closing(OwnHead(num_cpus=4))


def spec_of(data: str, checkpoint: str, output: Path) -> BatchInferSpec:
    return BatchInferSpec(
        predictor=steps.Predictor,
        checkpoint=checkpoint,
        dataset={"path": data, "format": "parquet"},
        output_columns=["prediction"],
        batch_size=BATCH,
        concurrency=ACTORS,
        run_config=RunConfig(name="inference", storage_path=str(output)),
    )


def ray_data(data: str, checkpoint: str, output: Path) -> float:
    with a_head() as head:
        return program(RAY_DATA, data, checkpoint, output, head.environment)


def torch_loop(data: str, checkpoint: str, output: Path) -> float:
    return program(LOOP, data, checkpoint, output, dict(os.environ))


def program(text: str, data: str, checkpoint: str, output: Path, environment: dict[str, str]) -> float:
    output.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    arguments = [data, checkpoint, str(output), str(BATCH), str(ACTORS)]
    environment = {**environment, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", text, *arguments], check=True, env=environment, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


#: name → what runs it and returns its seconds
WAYS: dict[str, Callable[[str, str, Path], float]] = {
    "a step": step,
    "bare Ray Data": ray_data,
    "torch and pyarrow": torch_loop,
}


def show(sizes: tuple[int, int], taken: dict[str, list[list[float]]]) -> None:
    few, many = sizes
    speeds = {way: [(many - few) / (last - first) for first, last in times] for way, times in taken.items()}
    title = f"the same predictions, medians of {len(taken['a step'])} rounds"
    table = Table(
        "", f"{few:,} rows, s", f"{many:,} rows, s", "rows/s beyond", "a step ÷ this", "of the rounds", title=title
    )
    for way, times in taken.items():
        ratios = [mine / theirs for mine, theirs in zip(speeds["a step"], speeds[way], strict=True)]
        seconds = [f"{statistics.median(each):.1f}" for each in zip(*times, strict=True)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        table.add_row(way, *seconds, f"{statistics.median(speeds[way]):,.0f}", f"{statistics.median(ratios):.2f}", spread)
    Console(width=120).print(table)


def show_memory(folder: Path, checkpoint: str, store: int = 200_000_000) -> None:
    """A step over a dataset four times as large as the head's object store."""
    rows = 4 * store // 256
    place = folder / "memory"
    place.mkdir()
    head = OwnHead(num_cpus=4, object_store_memory=store, preload=False)
    peaks: dict[str, Any] = {}
    try:
        for name, size in (("a quarter of it", rows // 16), ("four times it", rows)):
            data = make_images(folder / f"memory-{size}", size)
            with Memory(head) as taken:
                run(spec_of(data, checkpoint, place / name.replace(" ", "-")), head.cluster())
            peaks[name] = (size * 256, taken.private, taken.shared)
    finally:
        head.close()
    title = f"memory, MB, with an object store of {store / 1e6:.0f}"
    table = Table("data", "bytes of data", "private, all processes", "object store", title=title)
    for name, sizes in peaks.items():
        table.add_row(name, *(f"{size / 1e6:.0f}" for size in sizes))
    Console(width=120).print(table)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
