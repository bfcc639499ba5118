"""The experiment trackers that a run logs to."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    ValidatorFunctionWrapHandler,
    WrapSerializer,
    WrapValidator,
)

from plugin_core.errors import SpecError
from plugin_core.errors.shown import shown
from plugin_core.specs.base import Model
from plugin_core.specs.fields import Flag, Name, Names, Text, inside
from plugin_core.specs.references import check_service
from plugin_core.storage.plugins import TRACKERS, names, plugin


def _without_secret(uri: str | None) -> str | None:
    if uri is not None:
        check_service("", uri)
    return uri


class Tracker(Model):
    """The common fields of all trackers. `backend`: where a plugin's `tracking.backend.Backend` is, as "module:class";
    imported only on the cluster."""

    backend: ClassVar[str] = ""

    step_metric: Name | None = Field(
        None, description="a metric that is the step, an increasing whole number; None: reports are counted"
    )
    required: Flag = Field(False, description="fail without the tracker, instead of logging later")


class MLflow(Tracker):
    """An MLflow run."""

    type: Literal["mlflow"] = "mlflow"
    tracking_uri: Annotated[Name | None, AfterValidator(_without_secret)] = Field(
        None, description="None: `MLFLOW_TRACKING_URI` on the cluster"
    )
    experiment_name: Name | None = Field(
        None, description="None: `MLFLOW_EXPERIMENT_NAME` on the cluster, then `ray-train-workflows`"
    )
    run_id: Name | None = Field(None, description="log to this existing run")
    tags: dict[Name, Text] = Field({}, description="of the run")
    log_checkpoints: Flag = Field(False, description="upload the checkpoints that the run keeps; else only their places")


class WandB(Tracker):
    """A Weights & Biases run; if "offline", it is written to `tracking/wandb` in the run directory."""

    type: Literal["wandb"] = "wandb"
    project: Name = Field("ray-train-workflows", description="of the run")
    entity: Name | None = Field(None, description="None: W&B's default")
    group: Name | None = Field(None, description="None: W&B's default")
    tags: Names = Field([], description="of the run")
    mode: Literal["online", "offline"] | None = Field(
        None, description="offline: files in the run directory for `wandb sync`. None: `WANDB_MODE`, then online"
    )


class TensorBoard(Tracker):
    """TensorBoard's event files under `tracking/tensorboard` in the run directory."""

    type: Literal["tensorboard"] = "tensorboard"


class Comet(Tracker):
    """A Comet experiment; if "offline", it is an archive under `tracking/comet` in the run directory."""

    type: Literal["comet"] = "comet"
    project_name: Name = Field("ray-train-workflows", description="of the experiment")
    workspace: Name | None = Field(None, description="None: Comet's own")
    tags: Names = Field([], description="of the experiment")
    mode: Literal["online", "offline"] = Field(
        "online", description="offline: an archive in the run directory for `comet upload`"
    )


BuiltIn = Annotated[MLflow | WandB | TensorBoard | Comet, Field(discriminator="type")]
_BUILT_IN = [tracker.model_fields["type"].default for tracker in get_args(get_args(BuiltIn)[0])]


def _plugins(value: Any, built_in: ValidatorFunctionWrapHandler) -> Any:
    """Validate a plugin's tracker, given as a mapping or as an object; all others are validated as usual."""
    name = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    if not isinstance(name, str) or name in _BUILT_IN:
        return built_in(value)
    try:
        found = plugin(TRACKERS, name, "type")
    except SpecError as exc:
        raise inside(("type",), exc.message.removeprefix("type: ")) from exc
    if found is None:
        known = ", ".join([*_BUILT_IN, *names(TRACKERS)])
        raise inside(("type",), f"got {shown(name)}; expected one of {known}")
    if not (isinstance(found, type) and issubclass(found, Tracker) and found.backend):
        raise inside(("type",), f"got {name!r}, whose plugin is {found!r}; expected a Tracker with a backend")
    return found.model_validate(value)


def _written(value: Any, built_in: SerializerFunctionWrapHandler) -> Any:
    return value.model_dump(mode="json") if isinstance(value, Tracker) and value.backend else built_in(value)


AnyTracker = Annotated[BuiltIn, WrapValidator(_plugins), WrapSerializer(_written)]


def _as_list(value: Any) -> Any:
    """Accept a single tracker as a list, and a name as its tracker; each tracker at most once."""
    if value is None:
        return []
    given = value if isinstance(value, (list, tuple)) else [value]
    trackers = [{"type": item} if isinstance(item, str) else item for item in given]
    types = [item.get("type") if isinstance(item, dict) else getattr(item, "type", None) for item in trackers]
    for name in types:
        if types.count(name) > 1:
            raise ValueError(f"got {shown(name)} {types.count(name)} times; expected each tracker once")
    return trackers


Tracking = Annotated[list[AnyTracker], BeforeValidator(_as_list)]
