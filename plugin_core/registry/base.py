"""What a model registry stores and what every registry can do."""

from __future__ import annotations

from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict


class ModelVersion(BaseModel):
    """A checkpoint in a registry. `version`: from 1; `run`: the run that trained it; `made`: when, in seconds since the
    epoch (see `runs.age`); `dataset`: fingerprint of its training data; `evaluation`: the run that evaluated it, with
    `metrics`. `kept`: why a promotion left the alias at this version; "" if it did not."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    version: int = 0
    checkpoint: str
    run: str | None = None
    evaluation: str | None = None
    metrics: dict[str, Any] = {}
    dataset: str | None = None
    made: float | None = None
    kept: str = ""

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")


class Registry(Protocol):
    """A model registry. All methods raise StorageError if it cannot be reached."""

    def register(self, model: ModelVersion) -> ModelVersion:
        """Return this checkpoint's version: the existing one, or a new one."""
        ...

    def get(self, name: str, alias: str) -> ModelVersion | None:
        """Return the version the alias points to, or None."""
        ...

    def move(self, name: str, alias: str, to: int, expected: int) -> None:
        """Point the alias to version `to`. Raises AliasMovedError if it does not point to `expected` (0: to nothing)."""
        ...

    def previous(self, name: str, alias: str) -> int:
        """Return the version that a rollback goes to; 0 if none."""
        ...

    def roll_back(self, name: str, alias: str, to: int, expected: int) -> None:
        """Like `move`, back to the previous version."""
        ...
