"""Files that workers leave beside their checkpoints (plots, profiles, samples), kept in the run directory by rank."""

from __future__ import annotations

import logging
import shutil
import tempfile
from pathlib import Path

from plugin_core.errors import StorageError
from plugin_core.runs.directory import RunDir
from plugin_core.runs.fence import Fence
from plugin_core.storage.changed_files import changed_files

FOLDER = "artifacts"

logger = logging.getLogger(__name__)
_own: Artifacts | None = None


def artifact_directory() -> Path:
    """This worker's folder for files to keep, on its own disk. What is in it goes to `artifacts/rank-000/…` of the run
    directory with each checkpoint and when the loop ends, up to `limits.artifact_bytes`; a file that is written again
    replaces its copy. Raises RuntimeError outside of a train loop."""
    if _own is None:
        raise RuntimeError("artifact_directory() is for a train loop: outside of one there is no run to keep files of")
    return _own.folder


class Artifacts:
    """One worker's files, and what of them is kept already."""

    def __init__(self, run_uri: str, attempt: int, rank: int, limit_bytes: int):
        self.folder = Path(tempfile.mkdtemp(prefix="raytrain-artifacts-"))
        self._place = RunDir.at(run_uri).location.child(FOLDER, f"rank-{rank:03}")
        self._fence = Fence(run_uri, attempt)
        self._limit_bytes = limit_bytes
        self._kept: dict[str, tuple[int, int]] = {}
        self._left_out: set[str] = set()

    def begin(self) -> None:
        global _own
        _own = self

    def keep(self) -> None:
        """Copy what is new or has changed. A storage that does not take it is said and tried at the next time: it is no
        reason to end a training. Raises FencedError."""
        changed = list(changed_files(self.folder, self._kept))
        if changed:
            self._fence.check()
        for name, file, state in changed:
            others = sum(size for other, (size, _) in self._kept.items() if other != name)
            if others + state[0] > self._limit_bytes:
                self._leave_out(name, state[0])
                continue
            try:
                self._place.child(*name.split("/")).upload(file)
            except StorageError as exc:
                logger.warning("artifacts: %s; tried again with the next checkpoint", exc.message)
                return
            self._kept[name] = state

    def end(self) -> None:
        """Keep what there is, and forget the folder."""
        global _own
        try:
            self.keep()
        finally:
            _own = None
            shutil.rmtree(self.folder, ignore_errors=True)

    def _leave_out(self, name: str, size: int) -> None:
        if name not in self._left_out:
            self._left_out.add(name)
            logger.warning(
                "artifacts: %s (%d bytes) is left out, it does not fit into limits.artifact_bytes=%d beside what is kept",
                name,
                size,
                self._limit_bytes,
            )
