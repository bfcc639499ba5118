"""A fitted Ray Data preprocessor travels with the checkpoint of the model that was trained on its output."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import cloudpickle

from plugin_core.errors import SpecError
from plugin_core.functions import call_with
from plugin_core.results import CheckpointRef

if TYPE_CHECKING:
    import ray.data.preprocessor
    import ray.train

    from plugin_core.steps import StepContext

#: The key of a checkpoint's metadata under which the preprocessor stands.
KEY = "raytrain_preprocessor"


def save_preprocessor(checkpoint: ray.train.Checkpoint, preprocessor: ray.data.preprocessor.Preprocessor) -> None:
    """Put a fitted preprocessor beside the files of a checkpoint, before it is reported. Evaluation and batch inference
    then transform their batches with it."""
    checkpoint.update_metadata({KEY: serialize(preprocessor)})


def serialize(preprocessor: ray.data.preprocessor.Preprocessor) -> str:
    """A preprocessor as it stands in a checkpoint's metadata: pickled, in base64."""
    return base64.b64encode(cloudpickle.dumps(preprocessor)).decode()


def fitted_preprocessor(context: StepContext, datasets: Mapping[str, Any]) -> Any:
    """What the function `preprocessor` of the spec returns, fitted on the dataset "train"; kept in the run directory, so
    that each attempt transforms alike. Raises SpecError where it returns no preprocessor."""
    from ray.data.preprocessor import Preprocessor

    place = context.rundir.step.child("preprocessor.pkl")
    kept = place.read()
    if kept is not None:
        return pickle.loads(kept)
    made = call_with(context.function("preprocessor"))
    if not isinstance(made, Preprocessor):
        raise SpecError(
            f"preprocessor: given a function that returns {type(made).__name__}; accepted is one that returns a"
            " preprocessor of ray.data.preprocessors"
        )
    fitted = made.fit(datasets["train"])
    place.write(cloudpickle.dumps(fitted))
    return fitted


def load_preprocessor(checkpoint: CheckpointRef | ray.train.Checkpoint) -> Any:
    """The preprocessor that stands with a checkpoint (a result's, or Ray's own), or None. It is unpickled: load only
    checkpoints that you trust."""
    found = checkpoint.to_ray() if isinstance(checkpoint, CheckpointRef) else checkpoint
    kept = found.get_metadata().get(KEY)
    return pickle.loads(base64.b64decode(kept)) if kept else None
