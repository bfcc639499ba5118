"""What batch inference costs: `make bench-inference`, or `python -m benchmarks.batch_inference [ROWS]`.

The digits' network over generated images, three ways on one machine in one run: as a step; as a bare Ray Data program on
the same Ray head with the same predictor, batch size and pool; as a bare torch and pyarrow loop in one process. Each
runs on ROWS and on ROWS / 5 rows: the difference between the two times gives the rows per second without one-time costs
(the start of a job and of an actor, imports). Then the memory of a step over a dataset four times the object store.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

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
import sys
from pathlib import Path
import numpy, pyarrow, pyarrow.dataset, pyarrow.parquet, torch
from example_flows.digits_steps import Predictor
from ray.train import Checkpoint
rows, checkpoint, output, batch, actors = sys.argv[1:]
predict = Predictor(Checkpoint.from_directory(checkpoint))
torch.set_num_threads(int(actors))
Path(output).mkdir()
with pyarrow.parquet.ParquetWriter(Path(output, "part.parquet"), pyarrow.schema([("prediction", "int64")])) as writer:
    for part in pyarrow.dataset.dataset(rows).to_batches(batch_size=int(batch)):
        image = part["image"].flatten().to_numpy().reshape(len(part), -1)
        writer.write_table(pyarrow.table({"prediction": predict({"image": image})["prediction"]}))
"""


def main(rows: int) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        checkpoint = make_checkpoint(folder)
        sizes = (rows // 5, rows)
        data = {size: make_images(folder / f"images-{size}", size) for size in sizes}
        head = OwnHead(num_cpus=4)
        try:
            ways = {"step": step, "bare Ray Data": ray_data, "bare torch loop": torch_loop}
            for way in ways.values():
                way(head, data[sizes[0]], checkpoint, folder / "warm" / way.__name__)  # imports, files in the page cache
            times = {
                name: [way(head, data[size], checkpoint, folder / str(size) / way.__name__) for size in sizes]
                for name, way in ways.items()
            }
        finally:
            head.close()
        show(sizes, times)
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


def step(head: OwnHead, data: str, checkpoint: str, output: Path) -> float:
    began = time.monotonic()
    run(spec_of(data, checkpoint, output), head.cluster())
    return time.monotonic() - began


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


def ray_data(head: OwnHead, data: str, checkpoint: str, output: Path) -> float:
    return program(RAY_DATA, data, checkpoint, output, head.environment)


def torch_loop(head: OwnHead, data: str, checkpoint: str, output: Path) -> float:
    return program(LOOP, data, checkpoint, output, dict(os.environ))


def program(text: str, data: str, checkpoint: str, output: Path, environment: dict[str, str]) -> float:
    output.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    arguments = [data, checkpoint, str(output), str(BATCH), str(ACTORS)]
    root = str(Path(__file__).resolve().parents[1])
    environment = {**environment, "PYTHONPATH": root}
    subprocess.run([sys.executable, "-c", text, *arguments], check=True, env=environment, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def show(sizes: tuple[int, int], times: dict[str, list[float]]) -> None:
    few, many = sizes
    table = Table("", f"{few} rows, s", f"{many} rows, s", "rows/s beyond", "÷ by hand", title="the same predictions")
    speed = {name: (many - few) / (last - first) for name, (first, last) in times.items()}
    for name, (first, last) in times.items():
        ratio = "" if name == "step" else f"step ÷ this: {speed['step'] / speed[name]:.2f}"
        table.add_row(name, f"{first:.1f}", f"{last:.1f}", f"{speed[name]:.0f}", ratio)
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
    main(int(sys.argv[1]) if sys.argv[1:] else 1_000_000)
