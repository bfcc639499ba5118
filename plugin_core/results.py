"""References to what a step made: small, JSON-safe, versioned; the data itself stays on storage."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, field_validator, model_validator

from plugin_core.errors import SpecError
from plugin_core.jsonsafe import json_safe
from plugin_core.storage import Location, normalise

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import ray.train

SCHEMA = 1
#: A reference passes through an engine's database; more than this stays in result.json alone (bytes of JSON).
REFERENCE_BYTES = 2048


class _Reference(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RunRef(_Reference):
    """A run: its directory's URI, and the attempt (counted from 1) that made the result."""

    uri: str
    name: str
    attempt: int = 1


class CheckpointRef(_Reference):
    """A checkpoint directory on persistent storage, by URI."""

    uri: str

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        """A train result (or its dict) stands for its checkpoint, a string for a URI."""
        if isinstance(value, TrainResult):
            value = value.model_dump()
        if isinstance(value, dict) and value.get("kind") == "train":
            if value.get("checkpoint") is None:
                raise ValueError("the train result given has no checkpoint")
            return value["checkpoint"]
        return {"uri": value} if isinstance(value, str) else value

    @field_validator("uri")
    @classmethod
    def _place(cls, value: str) -> str:
        return normalise(value)

    def to_ray(self) -> ray.train.Checkpoint:
        from ray.train import Checkpoint

        location = Location.of(self.uri)
        return Checkpoint(path=location.path, filesystem=location.fs)

    def as_directory(self) -> AbstractContextManager[str]:
        """A local directory with the checkpoint's files, for the length of a `with` block."""
        directory: AbstractContextManager[str] = self.to_ray().as_directory()
        return directory


class _Result(_Reference):
    schema_version: int = SCHEMA
    run: RunRef
    metrics: dict[str, Any] = {}
    truncated: bool = False

    @field_validator("metrics", mode="before")
    @classmethod
    def _safe(cls, value: Any) -> Any:
        return json_safe(value)

    def reference(self) -> Self:
        """This result, with as many metrics as fit into `REFERENCE_BYTES` (`truncated` says when some do not)."""
        if len(self.model_dump_json()) <= REFERENCE_BYTES:
            return self
        kept: dict[str, Any] = {}
        budget = REFERENCE_BYTES - len(self.model_copy(update={"metrics": {}, "truncated": True}).model_dump_json()) - 64
        for key, value in self.metrics.items():
            budget -= len(json.dumps({key: value}))
            if budget < 0:
                break
            kept[key] = value
        return self.model_copy(update={"metrics": kept, "truncated": True})

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")


class TrainResult(_Result):
    """`metrics` is the last report of the run; `checkpoint` the latest, `best_checkpoint` the best by the spec's score."""

    kind: Literal["train"] = "train"
    checkpoint: CheckpointRef | None = None
    best_checkpoint: CheckpointRef | None = None
    reports: int = 0

    def load(self) -> ray.train.Result:
        """Ray's own result of the run, read from storage (without `return_value` and `error`)."""
        from ray.train import Result

        location = Location.of(self.run.uri)
        return Result.from_path(location.path, storage_filesystem=location.fs)


class EvaluationResult(_Result):
    """`failed` says for each broken threshold the value and the bound."""

    kind: Literal["evaluate"] = "evaluate"
    passed: bool
    failed: dict[str, str] = {}
    checkpoint: CheckpointRef | None = None


class BatchInferResult(_Result):
    """`output` is the directory of parquet files; `rows` counts them. `_SUCCESS.json` in it is the commit marker."""

    kind: Literal["batch_infer"] = "batch_infer"
    output: str
    rows: int


AnyResult = TrainResult | EvaluationResult | BatchInferResult
_KINDS: dict[str, type[AnyResult]] = {
    "train": TrainResult,
    "evaluate": EvaluationResult,
    "batch_infer": BatchInferResult,
}


def parse_result(data: Any) -> AnyResult:
    """A result from its JSON. Raises SpecError where it is none, or newer than this code."""
    if isinstance(data, _Result):
        return data  # type: ignore[return-value]
    if not isinstance(data, dict) or data.get("kind") not in _KINDS:
        raise SpecError(f"result: given {str(data)[:80]!r}; accepted is the JSON of a {', '.join(_KINDS)} result")
    version = data.get("schema_version", SCHEMA)
    if not isinstance(version, int) or version > SCHEMA:
        raise SpecError(
            f"schema_version: given {version!r}; accepted is up to {SCHEMA}; upgrade ray-train-workflows to read the result"
        )
    return _KINDS[data["kind"]].model_validate(data)
