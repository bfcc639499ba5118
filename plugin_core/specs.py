"""What a step is, as inert data: validated here, carried as JSON or YAML, run by the driver.

Field names and defaults follow `ray.train` (ScalingConfig, RunConfig, CheckpointConfig, FailureConfig, TorchConfig of Ray
2.60); `DEPARTURES` lists the defaults that differ on purpose. No secret belongs into a spec: name an environment
variable of the cluster instead.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    model_validator,
)

from plugin_core.errors import SpecError
from plugin_core.model import Model
from plugin_core.results import CheckpointRef
from plugin_core.storage import normalise

#: default of ours → why it is not Ray's
DEPARTURES = {
    "FailureConfig.max_failures": "3, not 0: a lost worker should cost one checkpoint interval, not the step",
    "RunConfig.name": "required, not a timestamp: the name is the run's identity, a retry under it resumes",
}

SCHEMA = 1
_REFERENCE = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")
_BY_VALUE = re.compile(r"^value:.+#[0-9a-f]+$")


def _check_function(value: Any) -> Any:
    if callable(value) or (isinstance(value, str) and (_REFERENCE.match(value) or _BY_VALUE.match(value))):
        return value
    raise ValueError("accepted is a callable or 'package.module:function'")


def _function_to_json(value: Any) -> str:
    if isinstance(value, str):
        return value
    from plugin_core.functions import by_value_name

    return by_value_name(value)


#: A function: "package.module:function" goes by reference, a callable by value.
Function = Annotated[
    str | Callable[..., Any],
    BeforeValidator(_check_function),
    PlainSerializer(_function_to_json, return_type=str, when_used="json"),
]


#: A local path (made absolute) or a URI.
Place = Annotated[str, AfterValidator(normalise)]


class ScalingConfig(Model):
    """How many workers, with what (`ray.train.ScalingConfig`). Resources are per worker; GPUs may be fractions."""

    num_workers: int | tuple[int, int] = 1
    use_gpu: bool = False
    resources_per_worker: dict[str, float] | None = None
    placement_strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK"
    accelerator_type: str | None = None
    label_selector: dict[str, str] | None = None
    elastic_resize_monitor_interval_s: float = Field(60.0, gt=0)

    @model_validator(mode="after")
    def _workers(self) -> Self:
        low, high = self.worker_range
        if low < 1 or high < low:
            raise ValueError(
                f"num_workers: given {self.num_workers}; accepted is a whole number ≥ 1, or a pair [min, max] with"
                " 1 ≤ min ≤ max"
            )
        for name, amount in (self.resources_per_worker or {}).items():
            if amount < 0:
                raise ValueError(f"resources_per_worker: given {name}: {amount}; accepted is an amount ≥ 0")
        return self

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
    num_to_keep: int | None = Field(None, ge=1)
    checkpoint_score_attribute: str | None = None
    checkpoint_score_order: Literal["max", "min"] = "max"


class FailureConfig(Model):
    """`max_failures`: worker-group failures survived within one attempt (-1: no limit); a user's exception is never tried
    again. Preemptions are counted apart: `max_preemption_failures`; `relax_collectives_on_preemption` and
    `preemption_grace_s` (seconds) let the surviving workers commit a checkpoint without those that are already gone."""

    max_failures: int = Field(3, ge=-1)
    controller_failure_limit: int = Field(-1, ge=-1)
    max_preemption_failures: int = Field(-1, ge=-1)
    relax_collectives_on_preemption: bool = False
    preemption_grace_s: float = Field(0.0, ge=0)


class RunConfig(Model):
    """`name` is the user's name of the run; with `storage_path` it is the run's identity, so a retry resumes it."""

    name: str | None = None
    storage_path: Place | None = None
    checkpoint_config: CheckpointConfig = CheckpointConfig()
    failure_config: FailureConfig = FailureConfig()
    worker_runtime_env: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _name(self) -> Self:
        if self.name is not None and not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._=-]{0,127}", self.name):
            raise ValueError(
                f"name: given {self.name!r}; accepted are 1 to 128 letters, digits and . _ - = (no slash), not"
                " starting with a dot or dash"
            )
        return self


class Limits(Model):
    """How long to wait and how often to try; seconds. None: no limit."""

    timeout_s: float | None = Field(None, gt=0, description="the whole step, over all attempts")
    scheduling_timeout_s: float | None = Field(None, gt=0, description="waiting for the cluster's resources")
    max_attempts: int = Field(3, ge=1, description="Ray jobs started after losses of infrastructure, in one call")
    heartbeat_ttl_s: float = Field(30.0, gt=0, description="an unmoved heartbeat is silent after this")
    unreachable_timeout_s: float | None = Field(None, gt=0, description="then, heartbeat silent, begin elsewhere")
    orphan_timeout_s: float | None = Field(None, gt=0, description="without a sign of any orchestrator the driver stops")


class DatasetConfig(Model):
    """A Ray Dataset by path and format, or by a function that returns one (called in the driver)."""

    path: Place | list[Place] | None = None
    format: Literal["parquet", "csv", "json"] | None = None
    columns: list[str] | None = None
    function: Function | None = None
    kwargs: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        return {"path": value} if isinstance(value, str) else {"function": value} if callable(value) else value

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.path is None) == (self.function is None):
            raise ValueError("accepted is exactly one of path and function")
        if self.path is not None and self.format is None and self.guessed_format is None:
            raise ValueError(f"format: missing and not told by {self.path!r}; accepted are parquet, csv, json")
        return self

    @property
    def guessed_format(self) -> str | None:
        first = self.path[0] if isinstance(self.path, list) else self.path or ""
        suffix = first.split("?")[0].rstrip("/").rsplit(".", 1)[-1].lower()
        return self.format or {"parquet": "parquet", "csv": "csv", "json": "json", "jsonl": "json"}.get(suffix)


class Threshold(Model):
    """Inclusive bounds on a metric."""

    min: float | None = None
    max: float | None = None


class TorchConfig(Model):
    """`ray.train.torch.TorchConfig`: backend nccl or gloo (None: by device), seconds for the process group to form."""

    backend: Literal["nccl", "gloo"] | None = None
    init_method: Literal["env", "tcp"] = "env"
    timeout_s: int = Field(1800, gt=0)


class StepSpec(Model):
    run_config: RunConfig = RunConfig()
    limits: Limits = Limits()
    runtime_env: dict[str, Any] = {}

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    def with_name(self, name: str, storage_path: str | None = None) -> Self:
        """This spec under `name`, and under `storage_path` where it has none of its own."""
        update = {"name": name, "storage_path": self.run_config.storage_path or storage_path}
        return self.model_copy(update={"run_config": self.run_config.model_copy(update=update)})

    def with_runtime_env(self, base: dict[str, Any]) -> Self:
        """This spec over a cluster's own `runtime_env`: its fields win, and of `env_vars` its variables."""
        merged = {**base, **self.runtime_env}
        if variables := {**base.get("env_vars", {}), **self.runtime_env.get("env_vars", {})}:
            merged["env_vars"] = variables
        return self.model_copy(update={"runtime_env": merged})


class TrainSpec(StepSpec):
    """Distributed training on Ray Train.

    `train_loop_per_worker` runs on every worker; XGBoost may go without one and be declared by `params`, `label_column`
    and `num_boost_round` instead. `resume_from` is a checkpoint of *another* run to start warm from; the loop finds it
    through `ray.train.get_checkpoint()` as long as the run has no checkpoint of its own.
    """

    kind: Literal["train"] = "train"
    framework: str = "torch"
    train_loop_per_worker: Function | None = None
    train_loop_config: dict[str, Any] = {}
    scaling_config: ScalingConfig = ScalingConfig()
    datasets: dict[str, DatasetConfig] = {}
    torch_config: TorchConfig | None = None
    params: dict[str, Any] | None = None
    label_column: str | None = None
    num_boost_round: int | None = Field(None, ge=1)
    resume_from: CheckpointRef | None = None

    @model_validator(mode="after")
    def _framework(self) -> Self:
        from plugin_core.frameworks import check

        check(self)
        return self


class EvaluateSpec(StepSpec):
    """`evaluate(checkpoint, dataset, config)` (as many of the three as it takes) returns a dict of metrics.

    `checkpoint` is a `ray.train.Checkpoint`, `dataset` a `ray.data.Dataset` or None. A metric outside its threshold
    makes the result's `passed` false.
    """

    kind: Literal["evaluate"] = "evaluate"
    evaluate: Function
    checkpoint: CheckpointRef
    dataset: DatasetConfig | None = None
    config: dict[str, Any] = {}
    thresholds: dict[str, Threshold] = {}
    num_cpus: float = Field(1.0, ge=0)
    num_gpus: float = Field(0.0, ge=0)


class BatchInferSpec(StepSpec):
    """`predictor(checkpoint, **config)` is built once an actor; its `__call__(batch)` maps a dict of arrays to another."""

    kind: Literal["batch_infer"] = "batch_infer"
    predictor: Function
    checkpoint: CheckpointRef
    dataset: DatasetConfig
    output_path: Place | None = Field(None, description="default: predictions/ in the run directory")
    config: dict[str, Any] = {}
    batch_size: int = Field(1024, ge=1)
    concurrency: int | tuple[int, int] = 1
    num_cpus: float = Field(1.0, ge=0)
    num_gpus: float = Field(0.0, ge=0)


AnySpec = TrainSpec | EvaluateSpec | BatchInferSpec
KINDS: dict[str, type[StepSpec]] = {"train": TrainSpec, "evaluate": EvaluateSpec, "batch_infer": BatchInferSpec}


def parse_spec(data: Any) -> StepSpec:
    """A spec from JSON-like data (or a spec as it is). Raises SpecError with one sentence a wrong field."""
    if isinstance(data, StepSpec):
        return data
    if not isinstance(data, dict):
        raise SpecError(f"spec: given {type(data).__name__}; accepted is a mapping of fields")
    kind = data.get("kind", "train")
    if kind not in KINDS:
        raise SpecError(f"kind: given {kind!r}; accepted are {', '.join(KINDS)}")
    return KINDS[kind](**data)


def load_spec(path: str | Path) -> StepSpec:
    """A spec from a YAML or JSON file."""
    try:
        text = Path(path).read_text()
    except OSError as exc:
        raise SpecError(f"spec file: given {str(path)!r}; it cannot be read ({exc.strerror})") from exc
    try:
        data = json.loads(text) if str(path).endswith(".json") else yaml.safe_load(text)
    except (yaml.YAMLError, json.JSONDecodeError) as exc:
        reason = str(exc).splitlines()[0]
        raise SpecError(f"spec file: given {str(path)!r}; accepted is YAML or JSON ({reason})") from exc
    if not isinstance(data, dict):
        raise SpecError(f"spec file: given {str(path)!r}; accepted is YAML or JSON that holds a mapping of fields")
    return parse_spec(data)


def as_spec(value: Any, accepted: type[StepSpec], folder: str | Path | None = None) -> StepSpec:
    """What an engine's user gave as a spec: a spec, a dict of its fields, or a YAML or JSON file (looked up in `folder`).

    `accepted`: the kind that is wanted, which a dict need not name. Raises SpecError.
    """
    if isinstance(value, (str, os.PathLike)):
        spec = load_spec(Path(folder or ".", value))
    elif isinstance(value, Mapping):
        kind = accepted.model_fields.get("kind")
        spec = parse_spec({**({"kind": kind.default} if kind else {}), **value})
    else:
        spec = parse_spec(value)
    if not isinstance(spec, accepted):
        raise SpecError(f"kind: given {spec.kind!r}; accepted here is {accepted.__name__}")  # type: ignore[attr-defined]
    return spec
