"""Files that a tracker writes on this machine, kept in the run directory under `tracking/NAME`.

Each attempt writes them anew out of the whole journal and, once they are there, removes those of the attempts before: so
what lies on storage is one run, with every report once.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
from pathlib import Path

from plugin_core.runs.fence import Fence
from plugin_core.storage.changed_files import changed_files
from plugin_core.tracking.subject import Subject


class Staged:
    """`folder` is where the tracker writes; `push` copies what has changed."""

    def __init__(self, subject: Subject, tracker: str):
        self.folder = Path(tempfile.mkdtemp(prefix=f"raytrain-{tracker}-"))
        self.place = subject.rundir.location.child("tracking", tracker)
        # another name each time: a replay too writes beside what is there, and then replaces it
        self._own = f"attempt-{subject.attempt:03}-{secrets.token_hex(4)}"
        self._target = self.place.child(self._own)
        self._pushed: dict[str, tuple[int, int]] = {}
        self._fence = Fence(subject.rundir.uri, subject.attempt)
        self._alone = False

    def push(self) -> None:
        """Raises FencedError where a later attempt owns the run: its files are the run's."""
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
