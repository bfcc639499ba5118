"""Checkpoints as a run's workers get them: the run's own, of which damage costs one checkpoint interval and not the run,
and another run's."""

from __future__ import annotations

import posixpath
from typing import Any

from plugin_core.errors import DamagedCheckpointError
from plugin_core.storage.checkpoint_copy import NodeCheckpoint
from plugin_core.storage.location import Location


class OwnCheckpoint(NodeCheckpoint):
    """Its `as_directory()` raises DamagedCheckpointError, so the next attempt resumes from the checkpoint before it."""

    def missing(self) -> DamagedCheckpointError:
        return DamagedCheckpointError(f"{self._name} does not exist or was deleted", checkpoint=self._name)

    def damaged(self, what: str) -> DamagedCheckpointError:
        return DamagedCheckpointError(f"{self._name} is damaged ({what})", checkpoint=self._name)

    @property
    def _name(self) -> str:
        return self._place.name


class WarmStart(NodeCheckpoint):
    """Another run's checkpoint, which the spec names. Names cannot tell: the same run may exist on another storage."""

    #: read by the helpers of train loops (`loops/upload.py`)
    is_warm_start = True


def own(checkpoint: Any, run_uri: str) -> Any:
    """Ray's checkpoint as one of the run's own; one from elsewhere is returned unchanged."""
    path = checkpoint.path.rstrip("/")
    place = Location.of(run_uri).child(posixpath.basename(path))
    return OwnCheckpoint(place.uri) if path == place.path else checkpoint
