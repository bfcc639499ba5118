"""A registry of small JSON files, on any supported storage.

    <root>/NAME/versions/000001.json            a version; created if absent
    <root>/NAME/aliases/ALIAS/000001.json       one file per move of the alias; the highest one is current

A move creates the next file only if it is absent. So if two processes saw the same current version, one moves the alias and
the other gets an error: compare-and-swap on storage that has none. The files are also the history that rollback uses.
"""

from __future__ import annotations

import json
from typing import TypeVar

from typing_extensions import TypedDict

from plugin_core.errors import AliasMovedError, StorageError
from plugin_core.registry.base import ModelVersion
from plugin_core.storage.location import Location, numbered
from plugin_core.storage.stored_files import parse

T = TypeVar("T")


class Move(TypedDict):
    """A move of an alias: its new and its previous version."""

    version: int
    previous: int


class FileRegistry:
    def __init__(self, root: Location):
        self.root = root

    def register(self, model: ModelVersion) -> ModelVersion:
        folder = self.root.child(model.name, "versions")
        while True:
            numbers = numbered(folder.names())
            for number in reversed(numbers):
                there = self._version(model.name, number)
                if there.checkpoint == model.checkpoint:
                    return there
            fresh = model.model_copy(update={"version": (numbers or [0])[-1] + 1})
            if _file(folder, fresh.version).create(json.dumps(fresh.to_json(), indent=1).encode()):
                return fresh

    def get(self, name: str, alias: str) -> ModelVersion | None:
        move = self._last_move(name, alias)
        return self._version(name, move["version"]) if move else None

    def versions(self, name: str) -> list[ModelVersion]:
        """All versions of a model, oldest first."""
        return [self._version(name, number) for number in numbered(self.root.child(name, "versions").names())]

    def move(self, name: str, alias: str, to: int, expected: int) -> None:
        self._move(name, alias, expected, {"version": to, "previous": expected})

    def previous(self, name: str, alias: str) -> int:
        move = self._last_move(name, alias)
        return int(move["previous"]) if move else 0

    def roll_back(self, name: str, alias: str, to: int, expected: int) -> None:
        """Like `move`; the next rollback goes to the version before `to`."""
        folder = self.root.child(name, "aliases", alias)
        moves = [self._read(Move, _file(folder, number)) for number in numbered(folder.names())]
        before = next((move["previous"] for move in reversed(moves) if move["version"] == to), 0)
        self._move(name, alias, expected, {"version": to, "previous": before})

    def _move(self, name: str, alias: str, expected: int, move: dict[str, int]) -> None:
        folder = self.root.child(name, "aliases", alias)
        numbers = numbered(folder.names())
        last = self._read(Move, _file(folder, numbers[-1]))["version"] if numbers else 0
        if last != expected or not _file(folder, (numbers or [0])[-1] + 1).create(json.dumps(move).encode()):
            now = self._last_move(name, alias) or {"version": 0}
            raise AliasMovedError(
                f"alias: {alias!r} of {name!r} moved meanwhile, from version {expected} to {now['version']}"
            )

    def _last_move(self, name: str, alias: str) -> Move | None:
        folder = self.root.child(name, "aliases", alias)
        numbers = numbered(folder.names())
        return self._read(Move, _file(folder, numbers[-1])) if numbers else None

    def _version(self, name: str, number: int) -> ModelVersion:
        return self._read(ModelVersion, _file(self.root.child(name, "versions"), number))

    @staticmethod
    def _read(kind: type[T], file: Location) -> T:
        data = file.read()
        if data is None:
            raise StorageError(f"registry: {file.uri} is missing")
        return parse(kind, data, f"registry: {file.uri}")


def _file(folder: Location, number: int) -> Location:
    return folder.child(f"{number:06}.json")
