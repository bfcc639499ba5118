"""Pins: retention (`num_to_keep`) deletes no pinned checkpoint.

A pin is a small file in the checkpoint's run directory, so that deletions on any host see it. It is written before the
checkpoint's existence is checked, so a pin that comes too late raises.
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
    """The run that a checkpoint (a URI) belongs to; None if it is not one of ours."""
    place = Location.of(checkpoint, "checkpoint")
    rundir = RunDir(place.parent)
    return rundir if rundir.exists() else None


def pin(checkpoint: str, by: str) -> None:
    """Pin a checkpoint (a URI) for `by`. Outside our runs there is nothing to pin, since nothing is deleted there.

    Raises SpecError if the checkpoint does not exist, StorageError if that cannot be determined.
    """
    place = Location.of(checkpoint, "checkpoint")
    rundir = home_of(checkpoint)
    if rundir is not None:
        _place(rundir, place.name, by).write(json.dumps({"by": by}).encode())
    if not place.names():
        raise missing(checkpoint)


def unpin(checkpoint: str, by: str) -> None:
    """Remove the pin of `by`. Never raises: a leftover pin only costs disk space."""
    try:
        if (rundir := home_of(checkpoint)) is not None:
            _place(rundir, Location.of(checkpoint).name, by).delete()
    except StorageError as exc:
        logger.warning("the checkpoint %s stays pinned: %s", checkpoint, exc)


def pinned(rundir: RunDir, name: str) -> bool:
    """Whether the run's checkpoint of that name is pinned."""
    return bool(rundir.step.child("pins", name).names())


def _place(rundir: RunDir, name: str, by: str) -> Location:
    return rundir.step.child("pins", name, f"{hashlib.sha256(by.encode()).hexdigest()[:16]}.json")
