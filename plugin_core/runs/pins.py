"""Who else needs a checkpoint: retention (`num_to_keep`) deletes none that is pinned.

A pin is a small file in the run directory that the checkpoint is in, so whoever deletes there finds it, on whatever host.
It is written first and the checkpoint looked for after that: a pin that comes too late says so.
"""

from __future__ import annotations

import hashlib
import json
import logging

from plugin_core.errors import StorageError
from plugin_core.runs.directory import RunDir
from plugin_core.storage.checkpoint_manifest import missing
from plugin_core.storage.location import Location

logger = logging.getLogger(__name__)


def home_of(checkpoint: str) -> RunDir | None:
    """The run that a checkpoint (a URI) lies in; None where it lies in none of ours."""
    place = Location.of(checkpoint, "checkpoint")
    rundir = RunDir(place.parent)
    return rundir if rundir.exists() else None


def pin(checkpoint: str, by: str) -> None:
    """Keep a checkpoint (a URI) for `by`. Nothing to do where it lies in no run of ours: nobody deletes there.

    Raises SpecError where the checkpoint is not there (any more), StorageError where that cannot be told.
    """
    place = Location.of(checkpoint, "checkpoint")
    rundir = home_of(checkpoint)
    if rundir is not None:
        _place(rundir, place.name, by).write(json.dumps({"by": by}).encode())
    if not place.names():
        raise missing(checkpoint)


def unpin(checkpoint: str, by: str) -> None:
    """`by` needs the checkpoint no more. Never raises: a pin too many costs only space."""
    try:
        if (rundir := home_of(checkpoint)) is not None:
            _place(rundir, Location.of(checkpoint).name, by).delete()
    except StorageError as exc:
        logger.warning("the checkpoint %s stays pinned: %s", checkpoint, exc)


def pinned(rundir: RunDir, name: str) -> bool:
    """Whether anybody needs the run's checkpoint of that name."""
    return bool(rundir.step.child("pins", name).names())


def _place(rundir: RunDir, name: str, by: str) -> Location:
    return rundir.step.child("pins", name, f"{hashlib.sha256(by.encode()).hexdigest()[:16]}.json")
