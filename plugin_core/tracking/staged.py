"""Copy files that a tracker writes on this machine to `tracking/NAME` in the run directory.

Each attempt rewrites them from the whole journal and, once they are uploaded, deletes those of earlier attempts. So storage
has one run, with every report once.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
from pathlib import Path

from plugin_core.runs.fence import Fence
from plugin_core.storage.changed_files import changed_files
from plugin_core.storage.scratch import scratch
from plugin_core.tracking.subject import Subject


class Staged:
    """`folder`: where the tracker writes; `push` copies changed files to storage."""

    def __init__(self, subject: Subject, tracker: str):
        self.folder = Path(tempfile.mkdtemp(prefix=f"{tracker}-", dir=scratch()))
        self.place = subject.rundir.location.child("tracking", tracker)
        # a new name each time: a replay also writes beside the existing files, then replaces them
        self._own = f"attempt-{subject.attempt:03}-{secrets.token_hex(4)}"
        self._target = self.place.child(self._own)
        self._pushed: dict[str, tuple[int, int]] = {}
        self._fence = Fence(subject.rundir.uri, subject.attempt)
        self._alone = False

    def push(self) -> None:
        """Copy changed files. Raises FencedError if a later attempt, whose files count instead, owns the run."""
        self._fence.check()
        for name, file, state in changed_files(self.folder, self._pushed):
            if not file.is_symlink():
                self._target.child(*name.split("/")).write(file.read_bytes())
                self._pushed[name] = state
        if not self._alone:
            for name in self.place.names():
                if name != self._own:
                    self.place.child(name).delete_dir()
            self._alone = True

    def close(self) -> None:
        self.push()
        shutil.rmtree(self.folder, ignore_errors=True)
