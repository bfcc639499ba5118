"""TODO"""

from __future__ import annotations

from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict


class ModelVersion(BaseModel):
    """A checkpoint in a registry: `version` counts from 1; `run` made it, on data of the fingerprint `dataset`;
    `evaluation` is the run that judged it, with `metrics`."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    version: int = 0
    checkpoint: str
    run: str | None = None
    evaluation: str | None = None
    metrics: dict[str, Any] = {}
    dataset: str | None = None

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")


class Registry(Protocol):
    """Raises StorageError where it cannot be reached."""

    def register(self, model: ModelVersion) -> ModelVersion:
        """The version of this checkpoint: the one that is there already, or the next."""
        ...

    def get(self, name: str, alias: str) -> ModelVersion | None:
        """What the alias stands for; None: nothing."""
        ...

    def move(self, name: str, alias: str, to: int, expected: int) -> None:
        """Let the alias stand for version `to`. Raises AliasMovedError where it is not at `expected` (0: nowhere)."""
        ...

    def previous(self, name: str, alias: str) -> int:
        """The version that a rollback goes to; 0: none."""
        ...

    def roll_back(self, name: str, alias: str, to: int, expected: int) -> None:
        """Like `move`, to what stood there before."""
        ...
