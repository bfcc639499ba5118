"""The experiment trackers that a run logs to."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from plugin_core.errors.shown import shown
from plugin_core.specs.base import Model
from plugin_core.specs.fields import Flag, Name, Names, Text
from plugin_core.specs.references import check_service


def _without_secret(uri: str | None) -> str | None:
    if uri is not None:
        check_service("", uri)
    return uri


class Tracker(Model):
    """The common fields of all trackers. `step_metric`: the metric to use as the step, an increasing whole number; by
    default reports are counted from 1. `required`: fail if the tracker is unreachable at the start, instead of continuing
    and logging later."""

    step_metric: Name | None = None
    required: Flag = False


class MLflow(Tracker):
    """An MLflow run (default URI and experiment: MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME on the cluster).

    `run_id`: log to this existing run instead of a new one. `log_checkpoints`: upload the checkpoints as artifacts;
    otherwise the run records their locations.
    """

    type: Literal["mlflow"] = "mlflow"
    tracking_uri: Annotated[Name | None, AfterValidator(_without_secret)] = None
    experiment_name: Name | None = None
    run_id: Name | None = None
    tags: dict[Name, Text] = {}
    log_checkpoints: Flag = False


class WandB(Tracker):
    """A Weights & Biases run. `mode` "offline" (default: WANDB_MODE, then online) writes under `tracking/wandb` in the run
    directory, for `wandb sync`."""

    type: Literal["wandb"] = "wandb"
    project: Name = "ray-train-workflows"
    entity: Name | None = None
    group: Name | None = None
    tags: Names = []
    mode: Literal["online", "offline"] | None = None


class TensorBoard(Tracker):
    """TensorBoard's event files under `tracking/tensorboard` in the run directory."""

    type: Literal["tensorboard"] = "tensorboard"


class Comet(Tracker):
    """A Comet experiment. `mode` "offline" writes an archive under `tracking/comet` in the run directory, for
    `comet upload`."""

    type: Literal["comet"] = "comet"
    project_name: Name = "ray-train-workflows"
    workspace: Name | None = None
    tags: Names = []
    mode: Literal["online", "offline"] = "online"


AnyTracker = Annotated[MLflow | WandB | TensorBoard | Comet, Field(discriminator="type")]


def _as_list(value: Any) -> Any:
    """Accept a single tracker as a list, and a name as its tracker; each at most once."""
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
