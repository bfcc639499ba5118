"""Batch inference: a predictor over a Ray Dataset with a pool of actors → parquet and a commit marker.

Every attempt writes into a folder of its own, and the result names the one that was finished, so a killed attempt never
mixes its files into the output.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from plugin_core import data
from plugin_core.results import BatchInferResult
from plugin_core.specs import BatchInferSpec
from plugin_core.steps.resources import in_words, no_resources
from plugin_core.storage import Location

if TYPE_CHECKING:
    from plugin_core.steps import StepContext

MARKER = "_SUCCESS.json"


class _Predict:
    """One an actor: builds the user's predictor once, then maps batches."""

    def __init__(self, predictor: Callable[..., Any], checkpoint: Any, config: dict[str, Any]):
        self._predict: Any = predictor
        if inspect.isclass(predictor):
            self._predict = predictor(checkpoint, **config)  # type: ignore[call-arg]

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = self._predict(batch)
        return result


def run(context: StepContext) -> BatchInferResult:
    import pyarrow.dataset
    import ray.data
    from ray.data import ActorPoolStrategy
    from ray.exceptions import GetTimeoutError, RayTaskError

    spec = context.spec
    assert isinstance(spec, BatchInferSpec)
    low, high = spec.concurrency if isinstance(spec.concurrency, tuple) else (spec.concurrency, spec.concurrency)
    root = Location.of(spec.output_path) if spec.output_path else context.rundir.location.child("predictions")
    output = root.child(f"attempt-{context.attempt:03}")
    output.delete_dir()
    output.make_dir()
    dataset = data.load(spec.dataset, functools.partial(context.function, "dataset.function")).map_batches(
        _Predict,
        fn_constructor_args=(context.function("predictor"), spec.checkpoint.to_ray(), spec.config),
        batch_size=spec.batch_size,
        batch_format="numpy",
        compute=ActorPoolStrategy(min_size=low, max_size=high),
        num_cpus=spec.num_cpus or None,
        num_gpus=spec.num_gpus or None,
    )
    context.set_phase("predicting")
    limit = spec.limits.scheduling_timeout_s
    if limit is not None:
        ray.data.DataContext.get_current().wait_for_min_actors_s = limit
    try:
        dataset.write_parquet(output.path, filesystem=output.fs)
    except GetTimeoutError as exc:
        if limit is None or isinstance(exc, RayTaskError):
            raise  # the predictor's own
        shape = in_words({"CPU": spec.num_cpus, "GPU": spec.num_gpus})
        raise no_resources(limit, f"{low} actor(s) of {shape} each") from exc
    rows = pyarrow.dataset.dataset(output.path, filesystem=output.fs, format="parquet").count_rows()
    output.child(MARKER).write(json.dumps({"rows": rows, "checkpoint": spec.checkpoint.uri}).encode())
    return BatchInferResult(run=context.run, output=output.uri, rows=rows, metrics={"rows": rows})
