"""The checkpoints of one run on one node's disk: FOLDER/raytrain-tier-UID/NODE/KEY/NAME/RANK/…

A rank's part is renamed into place once it is complete. It has a manifest, like a checkpoint on storage.
"""

from __future__ import annotations

import hashlib
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
            os.utime(self.place)
        except OSError as exc:
            raise StorageError(f"local_tier: {self._root} cannot be written: {exc}") from None
        # what a policy dropped, and runs that nobody continued
        for other in self._root.glob("*/*"):
            with suppress(OSError):
                if other.name == self.key:
                    continue
                dropped = other.name.partition("-")[0] == self.key.partition("-")[0]
                if dropped or other.stat().st_mtime < time.time() - STALE_S:
                    _remove(other)

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
        """Also removes what a killed process left of the rank's unfinished parts."""
        for left in self.place.glob(f"*/.{rank:05}.*"):
            _remove(left)
        return NewPart(self.part(name, rank))

    def prune(self, rank: int, besides: frozenset[str] = frozenset()) -> None:
        """Remove the rank's parts, except the newest ones and those of the checkpoints in `besides`."""
        parts = sorted(self.place.glob(f"*/{rank:05}"), key=lambda path: checkpoint_manifest.order(path.parent.name))
        for path in parts[:-KEPT]:
            if path.parent.name not in besides:
                _remove(path)

    def remove(self) -> None:
        """Remove everything that this machine has of the run, including that of other Ray nodes on it."""
        for place in self._root.glob(f"*/{self.key}"):
            _remove(place)

    def digest(self, name: str, rank: int) -> str:
        """Identifies a part's content, by its manifest. "" if there is none."""
        lists = sorted((self.part(name, rank) / checkpoint_manifest.FOLDER).glob("*.json"))
        return hashlib.sha256(b"".join(file.read_bytes() for file in lists)).hexdigest()[:16] if lists else ""

    def problems(self, name: str, digests: dict[int, str]) -> dict[int, str]:
        """What is wrong with these ranks' parts, read byte by byte; "" if nothing is. `digests`: rank → `digest`, or ""
        where it is not known."""
        return {rank: self._problem(name, rank, expected) for rank, expected in digests.items()}

    def _problem(self, name: str, rank: int, expected: str) -> str:
        try:
            if not (found := self.digest(name, rank)):
                return "it is missing"
            if expected and found != expected:
                return "workers that were lost made it"
            return checkpoint_manifest.mismatch(self.part(name, rank))
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


def _remove(folder: Path) -> None:
    """Remove the folder, and the one around it if that is empty then."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        folder.parent.rmdir()


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
