"""A checkpoint whose parts are on the nodes."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray.exceptions import RayError
from ray.train import Checkpoint

from plugin_core.driver.train.tiers.disk import Disk, write_chunk
from plugin_core.driver.train.tiers.peer import fetch
from plugin_core.driver.train.tiers.records import Record
from plugin_core.errors import InfrastructureError
from plugin_core.storage.checkpoint_copy import shared_copy
from plugin_core.storage.checkpoint_manifest import mismatch


class NodesCheckpoint(Checkpoint):
    """Ray's Checkpoint, made of the parts of all ranks. Its `as_directory()` fetches those on other nodes; all workers
    of a node share one copy. `disk`: this node's."""

    def __init__(self, record: Record, disk: Disk):
        self.record, self._disk = record, disk
        super().__init__(str(disk.place / record.name))

    def __reduce__(self) -> Any:
        return NodesCheckpoint, (self.record, self._disk)

    @contextmanager
    def as_directory(self) -> Iterator[str]:
        """Raises InfrastructureError if a part is gone: the next workers look for another checkpoint."""
        mark = f"{self._disk.key} {self.record.name} {self._disk.node}"
        with shared_copy(hashlib.sha256(mark.encode()).hexdigest()[:32], self._collect) as folder:
            yield str(folder)

    def to_directory(self, path: str | os.PathLike[str] | None = None) -> str:
        target = str(path if path is not None else self._get_temporary_checkpoint_dir())
        with self.as_directory() as folder:
            shutil.copytree(folder, target, dirs_exist_ok=True)
        return target

    def read_file(self, name: str) -> bytes | None:
        """One of its files, from whichever rank wrote it; None if no rank did. A part on this node saves a copy of all."""
        here = [rank for rank, nodes in self.record.nodes.items() if self._disk.node in nodes]
        for rank in here:
            part = self._disk.part(self.record.name, rank)
            if not part.is_dir():
                raise self._gone(self._disk.node, f"{part} was removed")
            with suppress(FileNotFoundError):
                return (part / name).read_bytes()
        if len(here) == len(self.record.nodes):
            return None
        with self.as_directory() as folder, suppress(FileNotFoundError):
            return Path(folder, name).read_bytes()
        return None

    def get_metadata(self) -> dict[str, Any]:
        with self.as_directory() as folder:
            found: dict[str, Any] = Checkpoint(folder).get_metadata()
        return found

    def _collect(self, folder: Path) -> None:
        folder.mkdir()
        name = self.record.name
        for rank, nodes in self.record.nodes.items():
            node = self._disk.node if self._disk.node in nodes else nodes[0]
            try:
                if node == self._disk.node:
                    shutil.copytree(self._disk.part(name, rank), folder, dirs_exist_ok=True)
                else:
                    for piece in fetch(replace(self._disk, node=node), name, rank):
                        write_chunk(folder, *piece)
            except (RayError, OSError) as exc:
                raise self._gone(node, exc) from None
        if what := mismatch(folder):
            raise InfrastructureError(f"the copy of {name} on the nodes is damaged: {what}")

    def _gone(self, node: str, why: object) -> InfrastructureError:
        return InfrastructureError(f"the copy of {self.record.name} on node {node[:12]} is gone: {why}")
