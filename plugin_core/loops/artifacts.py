"""Files that workers write beside their checkpoints (plots, profiles, samples), stored in the run directory by rank."""

from __future__ import annotations

import logging
import shutil
import tempfile
from pathlib import Path

from plugin_core.errors import StorageError
from plugin_core.runs.directory import RunDir
from plugin_core.runs.fence import Fence
from plugin_core.storage.changed_files import changed_files
from plugin_core.storage.scratch import scratch

FOLDER = "artifacts"

logger = logging.getLogger(__name__)
_own: Artifacts | None = None


def artifact_directory() -> Path:
    """Return this worker's local folder for artifacts. Its files are copied to `artifacts/rank-000/…` in the run directory
    with each checkpoint and when the loop ends, up to `limits.artifact_bytes`; a changed file replaces its copy. Raises
    RuntimeError outside a train loop."""
    if _own is None:
        raise RuntimeError("artifact_directory() is only valid in a train loop: there is no run outside one")
    return _own.directory()


class Artifacts:
    """One worker's files, and which of them are stored already."""

    def __init__(self, run_uri: str, attempt: int, rank: int, limit_bytes: int):
        #: made when the loop first asks for it
        self.folder: Path | None = None
        self._place = RunDir.at(run_uri).location.child(FOLDER, f"rank-{rank:03}")
        self._fence = Fence(run_uri, attempt)
        self._limit_bytes = limit_bytes
        self._kept: dict[str, tuple[int, int]] = {}
        self._left_out: set[str] = set()

    def begin(self) -> None:
        global _own
        _own = self

    def directory(self) -> Path:
        if self.folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="artifacts-", dir=scratch()))
        return self.folder

    def keep(self) -> None:
        """Copy new and changed files. A storage failure is logged and retried next time: it must not end the training.
        Raises FencedError."""
        if self.folder is None:
            return
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
                logger.warning("artifacts: %s; retrying with the next checkpoint", exc.message)
                return
            self._kept[name] = state

    def end(self) -> None:
        """Store what is left, and delete the folder."""
        global _own
        try:
            self.keep()
        finally:
            _own = None
            if self.folder is not None:
                shutil.rmtree(self.folder, ignore_errors=True)

    def _leave_out(self, name: str, size: int) -> None:
        if name not in self._left_out:
            self._left_out.add(name)
            logger.warning(
                "artifacts: skipping %s (%d bytes): with what is stored it exceeds limits.artifact_bytes=%d",
                name,
                size,
                self._limit_bytes,
            )
