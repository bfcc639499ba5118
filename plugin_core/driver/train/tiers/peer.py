"""Copies parts of checkpoints between nodes, in pieces, through actors and tasks that need no resources."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from plugin_core.driver.train.tiers.disk import Disk, NewPart, write_chunk


class _Receiver:
    """Runs on the peer; takes one part at a time."""

    def __init__(self, disk: Disk):
        self._disk = disk
        self._new: tuple[NewPart, Path] | None = None

    def begin(self, name: str, rank: int) -> None:
        self._disk.prepare()
        if self._new is not None:
            self._new[0].__exit__(Exception)
        new = self._disk.new_part(name, rank)
        self._new = new, new.__enter__()

    def take(self, path: str, at: int, data: bytes) -> None:
        assert self._new is not None
        write_chunk(self._new[1], path, at, data)

    def end(self, rank: int) -> None:
        assert self._new is not None
        self._new[0].__exit__(None)
        self._new = None
        self._disk.prune(rank)


class Peer:
    """The peer of a worker's node. Its actor ends with the worker."""

    def __init__(self, disk: Disk, node: str):
        self.node = node
        self._disk = disk
        on = NodeAffinitySchedulingStrategy(node, soft=False)
        self._actor: Any = ray.remote(num_cpus=0, scheduling_strategy=on)(_Receiver).remote(replace(disk, node=node))

    def send(self, name: str, rank: int) -> None:
        """Returns once the peer has the whole part. Raises RayError, OSError."""
        ray.get(self._actor.begin.remote(name, rank))
        for path, at, data in self._disk.read(name, rank):
            ray.get(self._actor.take.remote(path, at, data))
        ray.get(self._actor.end.remote(rank))

    def close(self) -> None:
        """End the actor, even in the middle of a part."""
        ray.kill(self._actor)


def fetch(disk: Disk, name: str, rank: int) -> Iterator[tuple[str, int, bytes]]:
    """The files of a part on another node, as from `Disk.read`. Raises RayError."""
    on = NodeAffinitySchedulingStrategy(disk.node, soft=False)
    reading = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=on, _generator_backpressure_num_objects=4)(
        Disk.read
    )
    for piece in reading.options(num_returns="streaming").remote(disk, name, rank):
        yield ray.get(piece)
