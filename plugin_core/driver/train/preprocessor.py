"""The preprocessor of a training: made by the user's function and fitted once for all attempts."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import cloudpickle

from plugin_core.errors import SpecError
from plugin_core.runs.context import StepContext
from plugin_core.specs.functions import call_with


def fitted_preprocessor(context: StepContext, datasets: Mapping[str, Any]) -> Any:
    """Return the preprocessor made by the spec's `preprocessor` function, fitted on the dataset "train". It is stored in
    the run directory, so that all attempts use the same one. Raises SpecError if the function returns something else."""
    from ray.data.preprocessor import Preprocessor

    place = context.rundir.step.child("preprocessor.pkl")
    kept = place.read(at_most=None)  # whoever may write it can run code here anyway
    if kept is not None:
        return pickle.loads(kept)
    made = call_with(context.function("preprocessor"))
    if not isinstance(made, Preprocessor):
        raise SpecError(
            f"preprocessor: got a function that returns {type(made).__name__}; expected one that returns a"
            " preprocessor from ray.data.preprocessors"
        )
    fitted = _fit(made, datasets["train"])
    place.write(cloudpickle.dumps(fitted))
    return fitted


def _fit(preprocessor: Any, dataset: Any) -> Any:
    """Fit the preprocessor. The placement group of a search's trial has no CPUs, and would capture the tasks of Ray
    Data's aggregations (ray 2.60), so a trial runs the fit in a task outside the group."""
    import ray

    if ray.util.get_current_placement_group() is None:
        return preprocessor.fit(dataset)

    def fit() -> Any:
        return preprocessor.fit(dataset)

    return ray.get(ray.remote(num_cpus=0, scheduling_strategy="DEFAULT")(fit).remote())
