"""Evaluate: a user function on a checkpoint (and a dataset) → metrics, judged by thresholds."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from plugin_core import data
from plugin_core.errors import UserCodeError
from plugin_core.functions import call_with
from plugin_core.jsonsafe import json_safe
from plugin_core.results import EvaluationResult
from plugin_core.specs import EvaluateSpec, Threshold
from plugin_core.steps.resources import reserved

if TYPE_CHECKING:
    from plugin_core.steps import StepContext


def run(context: StepContext) -> EvaluationResult:
    import ray

    spec = context.spec
    assert isinstance(spec, EvaluateSpec)
    function = context.function("evaluate")
    dataset = data.load(spec.dataset, functools.partial(context.function, "dataset.function")) if spec.dataset else None
    checkpoint = spec.checkpoint.to_ray()
    config = spec.config

    def evaluate() -> Any:
        return json_safe(call_with(function, checkpoint, dataset, config))

    # a task of its own, so that it runs where its CPUs and GPUs are; the driver has none
    with reserved({"CPU": spec.num_cpus, "GPU": spec.num_gpus}, spec.limits.scheduling_timeout_s) as strategy:
        context.set_phase("evaluating")
        task = ray.remote(num_cpus=spec.num_cpus, num_gpus=spec.num_gpus, scheduling_strategy=strategy)(evaluate)
        metrics = ray.get(task.remote())
    if not isinstance(metrics, dict):
        raise UserCodeError(f"evaluate: returned {type(metrics).__name__}; accepted is a dict of metrics")
    failed = {name: why for name, bound in spec.thresholds.items() if (why := judge(metrics.get(name), bound))}
    return EvaluationResult(run=context.run, metrics=metrics, passed=not failed, failed=failed, checkpoint=spec.checkpoint)


def judge(value: Any, bound: Threshold) -> str:
    """Why a metric breaks its threshold; empty when it does not. A metric that is missing or no number breaks it."""
    if not isinstance(value, (int, float)):
        return f"{value!r} is no number"
    if bound.min is not None and value < bound.min:
        return f"{value:g} < min {bound.min:g}"
    if bound.max is not None and value > bound.max:
        return f"{value:g} > max {bound.max:g}"
    return ""
