"""The work before a resume with many checkpoints: `python -m benchmarks.scale resume [CHECKPOINTS [RANKS]]`.

The journal is read, Ray's snapshot is checked (intact, and torn) and loaded by Ray's own checkpoint manager, on a
storage that takes 25 ms for each request, like an object store, and for each thousand names of a listing.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem
from rich.console import Console
from rich.table import Table

from plugin_core.driver.fenced_filesystem import SNAPSHOT, fenced_filesystem
from plugin_core.driver.train.snapshot import repair_snapshot, state_before
from plugin_core.runs.directory import RunDir
from plugin_core.runs.history import History
from plugin_core.runs.journal import JournalWriter
from plugin_core.specs import CheckpointConfig
from plugin_core.storage import checkpoint_manifest
from plugin_core.storage.uris import FILESYSTEMS

REQUEST_S, PAGE = 0.025, 1000
KINDS = {True: "directory", False: "file"}
CONFIG = CheckpointConfig(checkpoint_score_attribute="loss", checkpoint_score_order="min")


class Slow(LocalFileSystem):
    """Local files behind the delay of an object store; counts its requests."""

    requests = 0

    def _request(self, count: int = 1) -> None:
        type(self).requests += count
        time.sleep(REQUEST_S * count)

    def info(self, path: Any, **kwargs: Any) -> Any:
        self._request()
        return super().info(path, **kwargs)

    def ls(self, path: Any, detail: bool = False, **kwargs: Any) -> Any:
        # the local filesystem's own listing calls `info` for each entry; a listing of objects includes it
        with os.scandir(path) as entries:
            found = [
                {"name": e.path, "type": "directory" if e.is_dir() else "file", "size": e.stat().st_size} for e in entries
            ]
        self._request(1 + len(found) // PAGE)
        return found if detail else [entry["name"] for entry in found]

    def _open(self, path: Any, mode: str = "rb", block_size: Any = None, **kwargs: Any) -> Any:
        self._request()
        return super()._open(path, mode, block_size, **kwargs)


def slow() -> Slow:
    return Slow(skip_instance_cache=True)


def lay_down(run: Path, checkpoints: int, ranks: int) -> None:
    rundir = RunDir.at(str(run))
    rundir.claim(1, "http://x", "session")
    journal = JournalWriter(rundir, 1)
    for number in range(1, checkpoints + 1):
        name = f"checkpoint_2026_a001_{number:06}"
        (run / name / checkpoint_manifest.FOLDER).mkdir(parents=True)
        for rank in range(ranks):
            (run / name / f"part-{rank}").write_bytes(b"weights")
            text = json.dumps({"files": {f"part-{rank}": [7, 0]}})
            (run / name / checkpoint_manifest.FOLDER / f"{rank:05}.json").write_text(text)
        journal.append({"report": number, "index": number, "metrics": {"loss": 1 / number}, "checkpoint": name})
    journal.close()


def before_training(uri: str) -> tuple[float, float, str]:
    """Seconds of our work and of Ray's, and the message of the repair."""
    from ray.train import CheckpointConfig as RayCheckpointConfig
    from ray.train.v2._internal.execution.checkpoint.checkpoint_manager import CheckpointManager
    from ray.train.v2._internal.execution.storage import StorageContext

    began = time.monotonic()
    rundir = RunDir.at(uri)
    history = History.read(rundir)
    said = repair_snapshot(rundir, CONFIG, history)
    state_before(rundir, history)
    ours = time.monotonic() - began
    filesystem = fenced_filesystem(uri, 1)
    parent, _, name = rundir.location.path.rpartition("/")
    began = time.monotonic()
    CheckpointManager(
        RayCheckpointConfig(**CONFIG.model_dump()), StorageContext(parent, name, storage_filesystem=filesystem)
    )
    return ours, time.monotonic() - began, said


def main(checkpoints: int = 1000, ranks: int = 64) -> None:
    os.environ[FILESYSTEMS] = "benchmarks.scale_resume:slow"
    table = Table(
        "snapshot", "requests", "our work", "Ray's", "target", title=f"A resume over {checkpoints} × {ranks} ranks"
    )
    os.chdir("/")  # paths on a filesystem of fsspec have no root
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        run = Path(folder, "run")
        lay_down(run, checkpoints, ranks)
        uri = f"custom:/{run}?filesystem=benchmarks.scale_resume:slow"
        tear: Callable[[], Any] = lambda: (run / SNAPSHOT).write_bytes(b"{")  # noqa: E731
        for name, prepare in (("missing", lambda: None), ("good", lambda: None), ("torn", tear)):
            prepare()
            Slow.requests = 0
            ours, rays, _ = before_training(uri)
            table.add_row(name, str(Slow.requests), f"{ours:.1f} s", f"{rays:.1f} s", "< 10 s")
    Console().print(table)
