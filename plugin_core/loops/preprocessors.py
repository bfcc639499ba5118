"""A fitted Ray Data preprocessor travels with the checkpoint of the model that was trained on its output."""

from __future__ import annotations

import base64
import pickle
from typing import TYPE_CHECKING, Any

import cloudpickle

from plugin_core.specs.results import CheckpointRef

if TYPE_CHECKING:
    import ray.data.preprocessor
    import ray.train


#: The key of a checkpoint's metadata under which the preprocessor stands.
KEY = "raytrain_preprocessor"


def save_preprocessor(checkpoint: ray.train.Checkpoint, preprocessor: ray.data.preprocessor.Preprocessor) -> None:
    """Put a fitted preprocessor beside the files of a checkpoint, before it is reported. Evaluation and batch inference
    then transform their batches with it."""
    checkpoint.update_metadata({KEY: serialize(preprocessor)})


def serialize(preprocessor: ray.data.preprocessor.Preprocessor) -> str:
    """A preprocessor as it stands in a checkpoint's metadata: pickled, in base64."""
    return base64.b64encode(cloudpickle.dumps(preprocessor)).decode()


def load_preprocessor(checkpoint: CheckpointRef | ray.train.Checkpoint) -> Any:
    """The preprocessor that stands with a checkpoint (a result's, or Ray's own), or None. It is unpickled: load only
    checkpoints that you trust."""
    found = checkpoint.to_ray() if isinstance(checkpoint, CheckpointRef) else checkpoint
    kept = found.get_metadata().get(KEY)
    return pickle.loads(base64.b64decode(kept)) if kept else None
