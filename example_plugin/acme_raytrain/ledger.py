"""A registry: `ledger:FILE` is one JSON file on a disk that all who promote share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock

from plugin_core.errors import AliasMovedError
from plugin_core.registry.base import ModelVersion


def opened(where: str) -> Ledger:
    """`where`: what follows `ledger:` in the registry's URI."""
    return Ledger(Path(where))


class Ledger:
    """A `plugin_core.registry.base.Registry`."""

    def __init__(self, file: Path):
        self._file = file

    @contextmanager
    def _open(self) -> Iterator[dict[str, Any]]:
        """What the file has; changes are kept."""
        with FileLock(f"{self._file}.lock"):
            content = json.loads(self._file.read_text()) if self._file.exists() else {"versions": {}, "moves": {}}
            yield content
            part = self._file.with_suffix(".part")
            part.write_text(json.dumps(content))
            part.replace(self._file)

    def register(self, model: ModelVersion) -> ModelVersion:
        with self._open() as content:
            versions = content["versions"].setdefault(model.name, [])
            known = next((each for each in versions if each["checkpoint"] == model.checkpoint), None)
            if known is None:
                known = model.model_copy(update={"version": len(versions) + 1}).to_json()
                versions.append(known)
            return ModelVersion(**known)

    def get(self, name: str, alias: str) -> ModelVersion | None:
        with self._open() as content:
            moves = content["moves"].get(f"{name}@{alias}")
            return ModelVersion(**content["versions"][name][moves[-1]["to"] - 1]) if moves else None

    def move(self, name: str, alias: str, to: int, expected: int) -> None:
        self._move(name, alias, expected, {"to": to, "previous": expected})

    def previous(self, name: str, alias: str) -> int:
        with self._open() as content:
            moves = content["moves"].get(f"{name}@{alias}")
            return int(moves[-1]["previous"]) if moves else 0

    def roll_back(self, name: str, alias: str, to: int, expected: int) -> None:
        with self._open() as content:
            moves = content["moves"].get(f"{name}@{alias}", [])
            before = next((move["previous"] for move in reversed(moves) if move["to"] == to), 0)
        self._move(name, alias, expected, {"to": to, "previous": before})

    def _move(self, name: str, alias: str, expected: int, move: dict[str, int]) -> None:
        with self._open() as content:
            moves = content["moves"].setdefault(f"{name}@{alias}", [])
            current = moves[-1]["to"] if moves else 0
            if current != expected:
                raise AliasMovedError(f"alias: {alias!r} of {name!r} moved meanwhile, from version {expected} to {current}")
            moves.append(move)
