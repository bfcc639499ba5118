"""Parts of specs: where and how a run is kept, how long it may take, its datasets and workers."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, Strict, model_validator

from plugin_core.errors.shown import shown
from plugin_core.specs.base import Model
from plugin_core.specs.fields import (
    Amount,
    Count,
    Flag,
    Grace,
    Name,
    Names,
    Plain,
    Processes,
    Seconds,
    Seed,
    Share,
    Text,
    Tries,
    Whole,
)
from plugin_core.specs.references import check_run_name
from plugin_core.specs.runtime_env import RuntimeEnv
from plugin_core.storage.location import normalise

#: default of ours → why it is not Ray's
DEPARTURES = {
    "FailureConfig.max_failures": "3, not 0: a lost worker should cost one checkpoint interval, not the step",
    "RunConfig.name": "required, not a timestamp: the name is the run's identity, a retry under it resumes",
}

SCHEMA = 1
REFERENCE = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")
_BY_VALUE = re.compile(r"^value:.+#[0-9a-f]+$")


#: Marks the fields whose functions travel with the step.
USERS_FUNCTION = "a user's function"


def _check_function(value: Any) -> Any:
    if callable(value) or (isinstance(value, str) and (REFERENCE.match(value) or _BY_VALUE.match(value))):
        return value
    raise ValueError("expected a callable or 'package.module:function'")


def _function_to_json(value: Any) -> str:
    if isinstance(value, str):
        return value
    from plugin_core.specs.functions import by_value_name

    return by_value_name(value)


#: A function: "package.module:function" goes by reference, a callable by value.
Function = Annotated[
    str | Callable[..., Any],
    USERS_FUNCTION,
    BeforeValidator(_check_function),
    PlainSerializer(_function_to_json, return_type=str, when_used="json"),
]


#: A local path (made absolute) or a URI.
Place = Annotated[str, Strict(), AfterValidator(normalise)]
Places = Annotated[list[Place], Field(min_length=1)]


def _known_framework(name: str) -> str:
    from plugin_core.specs.frameworks import FRAMEWORKS

    if name not in FRAMEWORKS:
        close = difflib.get_close_matches(name, FRAMEWORKS, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise ValueError(f"got {shown(name)}; expected {', '.join(FRAMEWORKS)}{hint}")
    return name


#: One of `plugin_core.driver.train.frameworks.build`, by name.
Framework = Annotated[str, Strict(), AfterValidator(_known_framework)]


class ScalingConfig(Model):
    """How many workers, with what (`ray.train.ScalingConfig`). Resources are per worker; GPUs may be fractions."""

    num_workers: Processes = 1
    use_gpu: Flag = False
    resources_per_worker: dict[Name, Amount] | None = None
    placement_strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK"
    accelerator_type: Name | None = None
    label_selector: dict[Name, Text] | None = None
    elastic_resize_monitor_interval_s: Seconds = 60.0

    @property
    def worker_range(self) -> tuple[int, int]:
        return self.num_workers if isinstance(self.num_workers, tuple) else (self.num_workers, self.num_workers)

    def worker_resources(self) -> dict[str, float]:
        """What one worker takes; Ray's own rule: 1 CPU, or 1 GPU when `use_gpu`, unless said otherwise."""
        given = {key: value for key, value in (self.resources_per_worker or {}).items() if value}
        if self.use_gpu:
            given.setdefault("GPU", 1.0)
        elif not given:
            given["CPU"] = 1.0
        return given


class CheckpointConfig(Model):
    num_to_keep: Count | None = None
    checkpoint_score_attribute: Name | None = None
    checkpoint_score_order: Literal["max", "min"] = "max"


class FailureConfig(Model):
    """`max_failures`: worker-group failures survived within one attempt (-1: no limit); a user's exception is never tried
    again. Preemptions are counted apart: `max_preemption_failures`; `relax_collectives_on_preemption` and
    `preemption_grace_s` (seconds) let the surviving workers commit a checkpoint without those that are already gone."""

    max_failures: Tries = 3
    controller_failure_limit: Tries = -1
    max_preemption_failures: Tries = -1
    relax_collectives_on_preemption: Flag = False
    preemption_grace_s: Grace = 0.0


class RunConfig(Model):
    """`name` is the user's name of the run; with `storage_path` it is the run's identity, so a retry resumes it."""

    name: Text | None = None
    storage_path: Place | None = None
    checkpoint_config: CheckpointConfig = CheckpointConfig()
    failure_config: FailureConfig = FailureConfig()
    worker_runtime_env: RuntimeEnv | None = None

    @model_validator(mode="after")
    def _name(self) -> Self:
        if self.name is not None:
            check_run_name("name", self.name)
        return self


class Limits(Model):
    """How long to wait (seconds), how often to try, how much to keep. None: no limit."""

    timeout_s: Seconds | None = Field(None, description="the whole step, over all attempts")
    scheduling_timeout_s: Seconds | None = Field(None, description="waiting for the cluster's resources")
    max_attempts: Count = Field(3, description="Ray jobs started after losses of infrastructure, in one call")
    heartbeat_ttl_s: Seconds = Field(30.0, description="an unmoved heartbeat is silent after this")
    unreachable_timeout_s: Seconds | None = Field(
        None,
        description="then, heartbeat silent, begin elsewhere; None: 300 s for another host's embedded head",
    )
    orphan_timeout_s: Seconds | None = Field(None, description="without a sign of any orchestrator the driver stops")
    artifact_bytes: Whole = Field(256 * 2**20, description="files of a worker that are kept, in sum (`artifacts`)")


#: What a dataset may be made of, by the endings that tell it.
FORMATS = {
    "parquet": ("parquet",),
    "csv": ("csv",),
    "json": ("json", "jsonl"),
    "text": ("txt",),
    "numpy": ("npy",),
    "images": (),
    "webdataset": ("tar",),
    "huggingface": (),
}


class SplitConfig(Model):
    """One part of the rows: about a share of `test_size`, or all the others. A row belongs to the one or the other by a
    hash of its content, or of the columns `by`, with `seed`: so two datasets of one source that name both parts have no
    row in common, in another step, on another cluster, and when rows are added later; equal rows stay together. (Give
    `by` where two steps read different columns.)"""

    part: Literal["train", "test"]
    test_size: Share
    seed: Seed = 0
    by: Names | None = None


class DatasetConfig(Model):
    """A Ray Dataset by path and format, or by a function that returns one (called in the driver).

    `version`: the user's own name of what the data is now (a date, a commit, a table's version), by which a retraining
    tells whether there is anything new; without one it goes by the files' names, sizes and times of change. `split`: a part
    of the rows. `shuffle_seed`: the rows in another order, always the same. `materialize`: read once and kept in the
    object store, not once an epoch. In a training `shard` gives each worker a part of the rows, else all of them.
    """

    path: Place | Places | None = None
    format: Literal[tuple(FORMATS)] | None = None  # type: ignore[valid-type]
    columns: Names | None = None
    function: Function | None = None
    kwargs: Plain = {}
    version: Text | None = None
    split: SplitConfig | None = None
    shuffle_seed: Seed | None = None
    materialize: Flag = False
    shard: Flag = True

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        """A string stands for a path, a callable for a function, a batch inference's result for its output."""
        if getattr(value, "kind", None) == "batch_infer":
            value = value.model_dump()
        if isinstance(value, dict) and value.get("kind") == "batch_infer":
            if not isinstance(value.get("output"), str):
                raise ValueError("path: the batch_infer result given has no output")
            return {"path": value["output"], "format": value.get("format", "parquet")}
        return {"path": value} if isinstance(value, str) else {"function": value} if callable(value) else value

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.path is None) == (self.function is None):
            raise ValueError("path: got neither or both of path and function; expected exactly one")
        if self.path is not None and self.format is None and self.guessed_format is None:
            raise ValueError(f"format: missing and not told by {self.path!r}; expected {', '.join(FORMATS)}")
        return self

    @property
    def guessed_format(self) -> str | None:
        first = self.path[0] if isinstance(self.path, list) else self.path or ""
        suffix = first.split("?")[0].rstrip("/").rsplit(".", 1)[-1].lower()
        return self.format or next((name for name, endings in FORMATS.items() if suffix in endings), None)
