"""What a checkpoint costs: `make bench-checkpoints`, or `python -m benchmarks.checkpoints [MEGABYTES]`.

A checkpoint of one file, and one of 1,000, from a worker to storage and back: with `ray.train.report` and
`CheckpointRef.as_directory` (Ray's copy, the fence, the manifest's checks, the wait until it can be resumed from), and
with a bare `pyarrow.fs.copy_files` in Ray's chunks; and how long `report` blocks the loop when the upload runs
alongside. All in the same worker, one after the other, three times each; the median counts. First on local disk,
then on a local S3 server.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from devtools.ray_heads import OwnHead
from devtools.servers import S3_ENVIRONMENT, environment, s3_server
from plugin_core import CheckpointConfig, RunConfig, TrainSpec, run

SHAPES = {"one file": 1, "1,000 files": 1000}
TIMES = 3
#: A copy's chunk size in bytes, the same as Ray's (2.60, `_pyarrow_fs_copy_files`); pyarrow's 1 MiB makes many
#: requests.
CHUNK = 64 << 20


def loop(config: dict[str, Any]) -> None:
    """Copy in each way, and report the seconds it took."""
    import os
    import shutil
    import tempfile
    import time
    from pathlib import Path

    import pyarrow.fs
    import ray.train

    from plugin_core import CheckpointRef
    from plugin_core.loops import upload
    from plugin_core.storage.location import Location

    source = Path(tempfile.mkdtemp())
    block = os.urandom(config["bytes"] // config["files"])
    for number in range(config["files"]):
        (source / f"part-{number:04}.bin").write_bytes(block)
    place = Location.of(config["bare"]).child(str(config["files"]))

    def timed(work: Any) -> float:
        started = time.perf_counter()
        work()
        return time.perf_counter() - started

    def bare_up() -> None:
        place.make_dir()
        pyarrow.fs.copy_files(str(source), place.path, destination_filesystem=place.fs, chunk_size=config["chunk"])

    def bare_down() -> None:
        with tempfile.TemporaryDirectory() as folder:
            pyarrow.fs.copy_files(place.path, folder, source_filesystem=place.fs, chunk_size=config["chunk"])

    def down() -> None:
        last = ray.train.get_all_reported_checkpoints()[-1].checkpoint.path
        run = Location.of(config["run"])
        with CheckpointRef(uri=run.child(Path(last).name).uri).as_directory():
            pass

    def write(folder: Path) -> None:
        for file in source.iterdir():
            os.link(file, folder / file.name)

    seconds: dict[str, list[float]] = {"bare up": [], "up": [], "bare down": [], "down": [], "async": []}
    for _ in range(config["times"]):
        seconds["bare up"].append(timed(bare_up))
        seconds["up"].append(timed(lambda: upload.report({}, write)))
        seconds["bare down"].append(timed(bare_down))
        seconds["down"].append(timed(down))
        seconds["async"].append(timed(lambda: upload.report({}, write, "async")))
    shutil.rmtree(source)
    ray.train.report(seconds)


def measure(storage: str, head: OwnHead, megabytes: int) -> dict[str, dict[str, float]]:
    found = {}
    for shape, files in SHAPES.items():
        name = f"files-{files}"
        place, _, query = storage.partition("?")
        run_uri = f"{place}/{name}" + (f"?{query}" if query else "")
        bare = f"{place}/bare" + (f"?{query}" if query else "")
        config = {"bytes": megabytes * 10**6, "files": files, "times": TIMES, "chunk": CHUNK}
        config |= {"bare": bare, "run": run_uri}
        spec = TrainSpec(
            framework="python",
            train_loop_per_worker=loop,
            train_loop_config=config,
            run_config=RunConfig(name=name, storage_path=storage, checkpoint_config=CheckpointConfig(num_to_keep=2)),
        )
        metrics = run(spec, head.cluster()).metrics
        found[shape] = {way: statistics.median(metrics[way]) for way in ("bare up", "up", "bare down", "down", "async")}
    return found


def main(megabytes: int) -> None:
    table = Table(
        *("storage", "checkpoint", "upload ÷ bare", "download ÷ bare", "async report ÷ sync"), title=f"{megabytes} MB"
    )
    with tempfile.TemporaryDirectory(prefix="h") as folder, environment(S3_ENVIRONMENT):
        place = Path(folder)
        head = OwnHead(num_cpus=2)
        try:
            with s3_server(place / "s3.log") as s3:
                for name, storage in (("local disk", str(place / "runs")), ("S3 server", s3)):
                    for shape, seconds in measure(storage, head, megabytes).items():
                        table.add_row(
                            *(name, shape, f"{seconds['up'] / seconds['bare up']:.2f}"),
                            *(f"{seconds['down'] / seconds['bare down']:.2f}", f"{seconds['async'] / seconds['up']:.2f}"),
                        )
        finally:
            head.close()
    Console(width=120).print(table)


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 1000)
