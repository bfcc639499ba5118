"""Runs a user's predictor in an actor pool: built once per actor, applied after the checkpoint's preprocessor."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from plugin_core.driver.resources import fitting, no_resources
from plugin_core.errors import UserCodeError
from plugin_core.loops.preprocessors import load_preprocessor
from plugin_core.specs.resources import in_words
from plugin_core.specs.step import READING, low_and_high

if TYPE_CHECKING:
    from plugin_core.specs import BatchInferSpec, Evaluation
    from plugin_core.specs.results import CheckpointRef


class Predict:
    """Builds `predictor(checkpoint, **config)` once, then maps batches, each first transformed by the preprocessor stored
    with the checkpoint. A plain function is called directly."""

    def __init__(self, predictor: Callable[..., Any], checkpoint: CheckpointRef, config: dict[str, Any], same_rows: bool):
        found = checkpoint.to_ray()
        self._preprocessor = load_preprocessor(found)
        self._same_rows = same_rows
        self._predict: Any = predictor
        if inspect.isclass(predictor):
            self._predict = predictor(found, **config)  # type: ignore[call-arg]

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        result: Any = self._predict(self._transformed(batch))
        if not isinstance(result, dict):
            raise UserCodeError(f"predictor: returned {type(result).__name__}; expected a dict of arrays")
        if self._same_rows and count(result) != count(batch):
            raise UserCodeError(
                f"predictor: returned {count(result)} rows for {count(batch)}; expected one per input row (preserve_rows)"
            )
        return result

    def _transformed(self, batch: dict[str, Any]) -> dict[str, Any]:
        if self._preprocessor is None:
            return batch
        from ray.data.block import BlockAccessor

        # a preprocessor returns the batch format it prefers: arrow, pandas or numpy
        block = BlockAccessor.batch_to_block(self._preprocessor.transform_batch(batch))
        transformed: dict[str, Any] = BlockAccessor.for_block(block).to_batch_format("numpy")
        return transformed


def count(batch: dict[str, Any]) -> int:
    return len(next(iter(batch.values()))) if batch else 0


@contextmanager
def pool(spec: Evaluation | BatchInferSpec, room: dict[str, float] | None) -> Iterator[dict[str, Any]]:
    """Yield the options of `Dataset.map_batches` for a pool of these actors, as many as fit in `room` (None: any number);
    consume the dataset within the context.

    Raises StepTimeoutError if the actors get no resources within `limits.scheduling_timeout_s`.
    """
    import ray.data
    from ray.data import ActorPoolStrategy
    from ray.exceptions import GetTimeoutError, RayTaskError

    limit = spec.limits.scheduling_timeout_s
    if limit is not None:
        ray.data.DataContext.get_current().wait_for_min_actors_s = limit
    low, high = low_and_high(spec.concurrency)
    high = fitting(room, {"CPU": spec.num_cpus, "GPU": spec.num_gpus}, low, high, READING[1])
    try:
        yield {
            "batch_size": spec.batch_size,
            "batch_format": "numpy",
            "compute": ActorPoolStrategy(min_size=low, max_size=high),
            "num_cpus": spec.num_cpus or None,
            "num_gpus": spec.num_gpus or None,
        }
    except GetTimeoutError as exc:
        if limit is None or isinstance(exc, RayTaskError):
            raise  # the predictor's own
        shape = in_words({"CPU": spec.num_cpus, "GPU": spec.num_gpus})
        raise no_resources(limit, f"{low} actor(s) of {shape} each") from exc
