"""Store a fitted Ray Data preprocessor with the checkpoint of the model trained on its output."""

from __future__ import annotations

import base64
import pickle
from typing import TYPE_CHECKING, Any

import cloudpickle

from plugin_core.specs.results import CheckpointRef

if TYPE_CHECKING:
    import ray.data.preprocessor
    import ray.train


#: The preprocessor's key in a checkpoint's metadata.
KEY = "raytrain_preprocessor"


def save_preprocessor(checkpoint: ray.train.Checkpoint, preprocessor: ray.data.preprocessor.Preprocessor) -> None:
    """Store a fitted preprocessor with a checkpoint before reporting it. Evaluation and batch inference then transform
    their batches with it."""
    checkpoint.update_metadata({KEY: serialize(preprocessor)})


def serialize(preprocessor: ray.data.preprocessor.Preprocessor) -> str:
    """Serialise a preprocessor for a checkpoint's metadata: pickled, in base64."""
    return base64.b64encode(cloudpickle.dumps(preprocessor)).decode()


def load_preprocessor(checkpoint: CheckpointRef | ray.train.Checkpoint) -> Any:
    """Load the preprocessor stored with a checkpoint (a result's, or Ray's), or None. It is unpickled: only load
    checkpoints that you trust."""
    found = checkpoint.to_ray() if isinstance(checkpoint, CheckpointRef) else checkpoint
    kept = found.get_metadata().get(KEY)
    return pickle.loads(base64.b64decode(kept)) if kept else None
