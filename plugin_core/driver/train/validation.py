"""The validation of a training's checkpoints, as Ray Train's `ValidationConfig`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plugin_core.driver.train.own_checkpoint import own
from plugin_core.driver.train.worker import without_null
from plugin_core.errors import SpecError
from plugin_core.runs.context import StepContext
from plugin_core.specs import TrainSpec
from plugin_core.specs.json_values import json_safe


def validation_config(context: StepContext, spec: TrainSpec) -> Any:
    """None if the spec has none."""
    from ray.train import ValidationConfig, ValidationTaskConfig

    ours = spec.validation
    if ours is None:
        return None
    score = spec.run_config.checkpoint_config.checkpoint_score_attribute
    return ValidationConfig(
        _Validate(context.function("validation.fn"), context.rundir.uri, score),
        task_config=ValidationTaskConfig(fn_kwargs=ours.fn_kwargs, timeout_s=ours.timeout_s),
        ray_remote_kwargs={**_as_options(ours.resources), "max_retries": ours.max_retries},
    )


class _Validate:
    """Runs the user's function in a Ray task: on the node's copy of the checkpoint, and with metrics that are JSON-safe."""

    def __init__(self, function: Callable[..., Any], run_uri: str, score_attribute: str | None):
        self._function = function
        self._run_uri = run_uri
        self._score = score_attribute

    def __call__(self, checkpoint: Any, **kwargs: Any) -> dict[str, Any]:
        metrics = self._function(own(checkpoint, self._run_uri), **kwargs)
        if not isinstance(metrics, dict):
            raise SpecError(f"validation.fn: returned a {type(metrics).__name__}; expected a dict of metrics")
        return without_null(json_safe(metrics), self._score)


def _as_options(resources: dict[str, float]) -> dict[str, Any]:
    """As arguments of `ray.remote`."""
    known = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
    options: dict[str, Any] = {"num_cpus": 0}
    options |= {known[name]: amount for name, amount in resources.items() if name in known}
    if more := {name: amount for name, amount in resources.items() if name not in known}:
        options["resources"] = more
    return options
