"""The checkpoints of one run on one node's disk: FOLDER/raytrain-tier-UID/NODE/KEY/NAME/RANK/…

A rank's part is renamed into place once it is complete. It has a manifest, like a checkpoint on storage.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from plugin_core.errors import StorageError
from plugin_core.storage import checkpoint_manifest
from plugin_core.storage.ownership import make_own

#: How many checkpoints stay on a node. Ranks are at most one report apart, and their copies on peers one more.
KEPT = 3
#: Bytes sent between nodes at once.
CHUNK = 8 << 20
#: Seconds after which another run's leftovers are removed.
STALE_S = 7 * 86_400


@dataclass(frozen=True)
class Disk:
    """`folder`: see `LocalTier`. `node`: the node's Ray id. `key`: see `TierOptions`."""

    folder: str | None
    node: str
    key: str

    @property
    def place(self) -> Path:
        return self._root / self.node / self.key

    @property
    def _root(self) -> Path:
        return Path(self.folder or tempfile.gettempdir(), f"raytrain-tier-{os.getuid()}")

    def prepare(self) -> None:
        """Raises StorageError if the folder cannot be written, or belongs to somebody else: its files are loaded later."""
        try:
            make_own(self._root, f"local_tier: {self._root} belongs to another user; expected a folder of this one")
            self.place.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise StorageError(f"local_tier: {self._root} cannot be written: {exc}") from None
        # what a policy dropped, and runs that nobody continued
        for other in self._root.glob("*/*"):
            with suppress(OSError):
                same_run = other.name.partition("-")[0] == self.key.partition("-")[0]
                dropped = same_run and other.name != self.key
                if dropped or other.stat().st_mtime < time.time() - STALE_S:
                    shutil.rmtree(other, ignore_errors=True)
                    other.parent.rmdir()

    def part(self, name: str, rank: int) -> Path:
        return self.place / name / f"{rank:05}"

    def keep(self, name: str, rank: int, source: str | Path) -> Path:
        """Copy a rank's checkpoint folder, with a manifest. Raises OSError."""
        with self.new_part(name, rank) as part, ThreadPoolExecutor(1) as pool:
            # beside the copy: each takes about as long, and the training waits for both
            files = pool.submit(checkpoint_manifest.describe, source, linked=True)
            shutil.copytree(source, part, dirs_exist_ok=True)
            checkpoint_manifest.write(part, rank, files.result())
        return self.part(name, rank)

    def new_part(self, name: str, rank: int) -> NewPart:
        return NewPart(self.part(name, rank))

    def prune(self, rank: int, besides: frozenset[str] = frozenset()) -> None:
        """Remove the rank's parts, except the newest ones and those of the checkpoints in `besides`."""
        parts = sorted(self.place.glob(f"*/{rank:05}"), key=lambda path: checkpoint_manifest.order(path.parent.name))
        for path in parts[:-KEPT]:
            if path.parent.name not in besides:
                shutil.rmtree(path, ignore_errors=True)
                with suppress(OSError):
                    path.parent.rmdir()

    def remove(self) -> None:
        """Remove everything that this machine has of the run, including that of other Ray nodes on it."""
        for place in self._root.glob(f"*/{self.key}"):
            shutil.rmtree(place, ignore_errors=True)
            with suppress(OSError):
                place.parent.rmdir()

    def problems(self, name: str, ranks: list[int]) -> dict[int, str]:
        """What is wrong with these ranks' parts, read byte by byte; "" if nothing is."""
        return {rank: self._problem(self.part(name, rank)) for rank in ranks}

    @staticmethod
    def _problem(part: Path) -> str:
        try:
            if not any((part / checkpoint_manifest.FOLDER).glob("*.json")):
                return "it is missing"
            return checkpoint_manifest.mismatch(part)
        except OSError as exc:
            return str(exc)

    def read(self, name: str, rank: int) -> Iterator[tuple[str, int, bytes]]:
        """The files of a part: path, offset in the file, bytes. Raises OSError."""
        part = self.part(name, rank)
        if not part.is_dir():
            raise FileNotFoundError(f"{part} was removed")
        for place, _, names in os.walk(part):
            for each in names:
                file = Path(place, each)
                path, at = file.relative_to(part).as_posix(), 0
                with file.open("rb") as stream:
                    while (data := stream.read(CHUNK)) or not at:
                        yield path, at, data
                        at += len(data)
                        if not data:
                            break


class NewPart:
    """A folder that takes its place once it is complete, replacing what is there."""

    def __init__(self, part: Path):
        self._part = part
        self._new = part.parent / f".{part.name}.{uuid.uuid4().hex[:8]}"

    def __enter__(self) -> Path:
        self._new.mkdir(parents=True)
        return self._new

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                shutil.rmtree(self._part, ignore_errors=True)
                os.replace(self._new, self._part)
        finally:
            shutil.rmtree(self._new, ignore_errors=True)


def write_chunk(folder: Path, path: str, at: int, data: bytes) -> None:
    """Write a piece that `Disk.read` gave, from any node. Raises OSError, ValueError for a path that leads elsewhere."""
    file = folder / path
    if not file.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"path: got {path!r}; expected one inside the checkpoint")
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("r+b" if at else "wb") as stream:
        stream.seek(at)
        stream.write(data)
