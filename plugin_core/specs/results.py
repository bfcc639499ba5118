"""References to a step's outputs: small, JSON-safe, versioned; the data itself stays on storage."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    SerializationInfo,
    StrictInt,
    StrictStr,
    field_serializer,
    field_validator,
    model_validator,
)

from plugin_core.errors import StorageError
from plugin_core.specs.json_values import RESULT, TEXT, also, json_safe
from plugin_core.storage.location import Location, normalise

if TYPE_CHECKING:
    import pandas
    import ray.train
    from matplotlib.figure import Figure


SCHEMA = 1
#: Bytes of JSON. A reference passes through an engine's database; anything beyond this stays in result.json only.
REFERENCE_BYTES = 2048
#: Where a run directory keeps a returned value that is too large for a reference, and the most bytes of it.
VALUE, VALUE_BYTES = (".step", "value.json"), 1 << 20


def _public(name: str) -> Any:
    """A public function from a room above this one, which reads run directories."""
    return getattr(importlib.import_module("plugin_core"), name)


class _Reference(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RunRef(_Reference):
    """A run: its directory's URI, and the attempt (counted from 1) that produced the result."""

    uri: StrictStr
    name: StrictStr
    attempt: StrictInt = 1


class CheckpointRef(_Reference):
    """A checkpoint directory on persistent storage, by URI."""

    model_config = ConfigDict(json_schema_extra=also(TEXT, RESULT))

    uri: StrictStr

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        """Accept a train result (or its dict) as its checkpoint, a search's as its best trial's, a retraining's as the
        champion's, and a string as a URI."""
        if isinstance(value, (TrainResult, TuneResult, RetrainResult)):
            value = value.model_dump()
        if isinstance(value, dict) and value.get("kind") == "tune":
            best = value.get("best")
            if not isinstance(best, dict):
                raise ValueError("the tune result given has no best trial")
            value = {**best, "checkpoint": best.get("best_checkpoint") or best.get("checkpoint"), "kind": "train"}
        if isinstance(value, dict) and value.get("kind") in ("train", "retrain"):
            if value.get("checkpoint") is None:
                raise ValueError(f"the {value['kind']} result given has no checkpoint")
            return value["checkpoint"]
        return {"uri": value} if isinstance(value, str) else value

    @field_validator("uri")
    @classmethod
    def _place(cls, value: str) -> str:
        return normalise(value)

    def to_ray(self) -> ray.train.Checkpoint:
        from plugin_core.storage.checkpoint_copy import NodeCheckpoint

        return NodeCheckpoint(self.uri)

    @contextmanager
    def as_directory(self) -> Iterator[str]:
        """A local directory with the checkpoint's files, valid within a `with` block: one copy for all processes of the
        node, or the original files if they are local. Raises SpecError if the checkpoint is damaged or missing,
        StorageError if that cannot be determined."""
        with self.to_ray().as_directory() as folder:
            yield folder


class StepResult(_Reference):
    """The fields of every result. A subclass adds a `kind` and the outputs of that kind of step (see `step_kinds`)."""

    if TYPE_CHECKING:
        kind: str = ""

    #: fields that a reference truncates to fit, in this order
    bulky: ClassVar[tuple[str, ...]] = ("metrics",)
    # a cluster may be newer than the engine that reads its results
    model_config = ConfigDict(extra="ignore")

    schema_version: int = SCHEMA
    run: RunRef
    metrics: dict[str, Any] = {}
    truncated: bool = False
    #: the links to its tracking runs, by tracker
    tracking: dict[str, str] = {}
    #: what a person should know although the step succeeded
    warnings: list[str] = []
    #: seconds of each part of the last attempt's start, in order (see `raytrain timeline`)
    timeline: dict[str, float] = {}
    #: seconds of each kind over all attempts (see `raytrain ledger`)
    ledger: dict[str, float] = {}

    @field_validator("metrics", mode="before")
    @classmethod
    def _safe(cls, value: Any) -> Any:
        return json_safe(value)

    def reference(self) -> Self:
        """This result without its timeline and ledger, cut to fit into `REFERENCE_BYTES` (`truncated`: whether it was)."""
        short = self.model_copy(update={"timeline": {}, "ledger": {}}) if self.timeline or self.ledger else self
        for field in self.bulky:
            if len(short.model_dump_json()) <= REFERENCE_BYTES:
                return short
            whole = getattr(short, field)
            short = short.model_copy(update={field: {}, "truncated": True})
            budget = REFERENCE_BYTES - len(short.model_dump_json()) - 64
            kept: dict[str, Any] = {}
            for key, value in whole.items():
                budget -= len(json.dumps({key: value}))
                if budget < 0:
                    break
                kept[key] = value
            short = short.model_copy(update={field: kept})
        return short

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    @property
    def made(self) -> str | None:
        """The URI of what the step made for later steps: its output, or else its checkpoint. None if it made nothing."""
        return getattr(self, "output", None) or getattr(getattr(self, "checkpoint", None), "uri", None)

    @classmethod
    def played(cls, spec: Any, run: RunRef, metrics: dict[str, Any]) -> Self:
        """The result of a step that never ran, for `FakeCluster`."""
        return cls(run=run, metrics=metrics)


class _Trained(StepResult):
    """The result of a step that trains. For a search, the reports are those of the best trial."""

    def history(self, metrics: Sequence[str] | None = None, **options: Any) -> pandas.DataFrame:
        """Every report so far as a pandas DataFrame, also of a live run: see `plugin_core.history`."""
        return _public("history")(self.run.uri, metrics, **options)

    def plot(self, *metrics: str) -> Figure:
        """A plot of the metrics so far (default: the first six): see `plugin_core.plot`."""
        drawn: Figure = _public("plot")(self.run.uri, *metrics)
        return drawn


class TrainResult(_Trained):
    """`metrics`: the run's last report. `checkpoint`: the latest one. `best_checkpoint`: the best by the spec's score,
    `best_score`: that score. `dataset`: the fingerprint of its datasets (see `dataset_fingerprint`). `artifacts`: the
    folder of the workers' files (see `artifacts`)."""

    kind: Literal["train"] = "train"
    checkpoint: CheckpointRef | None = None
    best_checkpoint: CheckpointRef | None = None
    best_score: float | None = None
    reports: int = 0
    dataset: str | None = None
    artifacts: str | None = None

    @classmethod
    def played(cls, spec: Any, run: RunRef, metrics: dict[str, Any]) -> Self:
        checkpoint = CheckpointRef(uri=Location.of(run.uri).child("checkpoint_fake").uri)
        return cls(run=run, metrics=metrics, checkpoint=checkpoint, reports=1)

    def load(self) -> ray.train.Result:
        """Ray's own result of the run, read from storage (without `return_value` and `error`)."""
        from ray.train import Result

        location = Location.of(self.run.uri)
        return Result.from_path(location.path, storage_filesystem=location.fs)


class EvaluationResult(StepResult):
    """`failed`: failed metric → its values and by how much it failed.

    `compared_metrics`: those of the other checkpoint. `slices`: column → value → metrics of those rows. `plots`: PNG
    files in the run directory, by name. `dataset`: the fingerprint of its data (`dataset_fingerprint`).
    """

    bulky: ClassVar[tuple[str, ...]] = ("slices", "compared_metrics", "metrics")

    kind: Literal["evaluate"] = "evaluate"
    passed: bool
    failed: dict[str, str] = {}
    checkpoint: CheckpointRef | None = None
    compared_to: str | None = None
    compared_metrics: dict[str, Any] = {}
    slices: dict[str, dict[str, dict[str, Any]]] = {}
    plots: dict[str, str] = {}
    dataset: str | None = None

    @classmethod
    def played(cls, spec: Any, run: RunRef, metrics: dict[str, Any]) -> Self:
        return cls(run=run, metrics=metrics, passed=True, checkpoint=spec.checkpoint)

    @property
    def made(self) -> None:
        """None: its checkpoint is the one that it was given."""

    @property
    def why(self) -> str:
        """The failed metrics in one line."""
        return "; ".join(f"{metric}: {reason}" for metric, reason in self.failed.items())


class EvaluationRef(_Reference):
    """An earlier evaluation's result to compare to."""

    model_config = ConfigDict(json_schema_extra=also(RESULT))

    uri: StrictStr
    metrics: dict[str, Any]
    dataset: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        """Accept an evaluation's result or its dict."""
        if isinstance(value, EvaluationResult):
            value = value.model_dump()
        if isinstance(value, dict) and value.get("kind") == "evaluate":
            run = value.get("run")
            uri = run.get("uri") if isinstance(run, dict) else None
            return {"uri": uri, "metrics": value.get("metrics"), "dataset": value.get("dataset")}
        return value


class TuneResult(_Trained):
    """`best`: the best trial's result. `metrics`: its last report. `best_config`: its values from the search space.
    `trials`: how many "finished", were "stopped" early, "failed", or were "kept" from a finished search. `table`: a
    JSON file with a row per trial. `table_markdown`: the same for people, best first. `plots`: PNG files in the run
    directory, by name."""

    kind: Literal["tune"] = "tune"
    best: TrainResult
    best_config: dict[str, Any]
    trials: dict[str, int]
    table: str
    table_markdown: str | None = None
    plots: dict[str, str] = {}

    @field_serializer("best")
    def _metrics_once(self, best: TrainResult, info: SerializationInfo) -> dict[str, Any]:
        return best.model_dump(mode=info.mode, exclude={"metrics"})

    @model_validator(mode="after")
    def _metrics_twice(self) -> Self:
        if not self.best.metrics:
            object.__setattr__(self, "best", self.best.model_copy(update={"metrics": self.metrics}))
        return self

    @classmethod
    def played(cls, spec: Any, run: RunRef, metrics: dict[str, Any]) -> Self:
        best = TrainResult.played(spec.train, run, metrics)
        trials = {"finished": spec.trials or 1, "stopped": 0, "failed": 0}
        return cls(run=run, metrics=metrics, best=best, best_config={}, trials=trials, table=f"{run.uri}/trials.json")

    @property
    def checkpoint(self) -> CheckpointRef | None:
        """The best trial's best checkpoint if its spec ranks them, else its last one."""
        return self.best.best_checkpoint or self.best.checkpoint


class BatchInferResult(StepResult):
    """`output`: the directory with the files in `format`. `rows`: their number of rows. Can be passed as a dataset."""

    kind: Literal["batch_infer"] = "batch_infer"
    output: str
    format: Literal["parquet", "csv", "json"] = "parquet"
    rows: int

    @classmethod
    def played(cls, spec: Any, run: RunRef, metrics: dict[str, Any]) -> Self:
        return cls(run=run, metrics=metrics, output=f"{run.uri}/predictions", rows=0)


class RetrainResult(_Trained):
    """`outcome`: the new checkpoint was "promoted", the champion was "kept", or the retraining was "skipped" for lack of
    new data; `reason` says why. `champion`: the version that the alias points to afterwards, `checkpoint`: its checkpoint.
    `metrics`: the new checkpoint's. `trained`, `evaluated`: the runs of the two steps."""

    kind: Literal["retrain"] = "retrain"
    outcome: Literal["promoted", "kept", "skipped"]
    reason: str
    champion: int
    checkpoint: CheckpointRef | None = None
    trained: str | None = None
    evaluated: str | None = None

    @classmethod
    def played(cls, spec: Any, run: RunRef, metrics: dict[str, Any]) -> Self:
        return cls(run=run, metrics=metrics, outcome="promoted", reason="as played", champion=1)

    @property
    def made(self) -> str | None:
        """The new checkpoint, if it was promoted."""
        return super().made if self.outcome == "promoted" else None


class RayJobResult(StepResult):
    """`value`: what the function returned; None for a command. A value that is too large to pass on is in the JSON file
    `value_uri` instead, and `load()` reads it. `output`: a folder for the step's files (`plugin_core.loops.step`).
    `metrics`: the numbers at the top level of a returned mapping."""

    kind: Literal["ray_job"] = "ray_job"
    value: Any = None
    value_uri: str | None = None
    output: str = ""

    def load(self) -> Any:
        """What the function returned, read from storage if necessary. Raises StorageError."""
        if self.value_uri is None:
            return self.value
        data = Location.of(self.run.uri).child(*VALUE).read(VALUE_BYTES)
        if data is None:
            raise StorageError(f"{self.value_uri} is missing: the value that the function returned")
        return json.loads(data)

    @classmethod
    def played(cls, spec: Any, run: RunRef, metrics: dict[str, Any]) -> Self:
        return cls(run=run, metrics=metrics, output=Location.of(run.uri).child("output").uri)
