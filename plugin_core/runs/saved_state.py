"""The progress that a step's own process saves: `.step/state/ATTEMPT-START.json`.

Each start of the process writes its own file, and reads the newest one of its own and all earlier starts. So a
process that is believed dead but keeps running can do no harm: nobody reads its file once the next start has saved.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from plugin_core.errors import FencedError, RayTrainWorkflowsError, StorageError, UserCodeError
from plugin_core.runs.directory import RunDir
from plugin_core.runs.fence import Fence
from plugin_core.specs.fields import plain
from plugin_core.storage.location import Location
from plugin_core.storage.stored_files import Object, parse

#: The most bytes in a state: it is written in one piece, and read by each start.
STATE_BYTES = 1 << 20
_NAME = re.compile(r"(\d{6})-(\d{6})\.json")


@dataclass(frozen=True)
class Start:
    """The `start`th start (counted from 1) of the step's process within an attempt of a run."""

    run: str
    attempt: int
    start: int

    def begin(self) -> None:
        """From now on, earlier starts can no longer save."""
        if self.start > 1:
            self._file(self.start, "started").write(b"")

    def load(self) -> Any:
        """The state that was saved last, by this start or an earlier one; None if there is none."""
        matches = map(_NAME.fullmatch, self._folder.names())
        starts = [(int(match[1]), int(match[2])) for match in matches if match]
        earlier = [each for each in starts if each <= (self.attempt, self.start)]
        if not earlier:
            return None
        attempt, start = max(earlier)
        place = Start(self.run, attempt, start)._file(start, "json")
        data = place.read(2 * STATE_BYTES)
        if data is None:
            raise StorageError(f"{place.uri} disappeared while it was read")
        found = parse(Object, data, place.uri)
        if "state" not in found:
            raise StorageError(f"{place.uri} is damaged: it has no state")
        return found["state"]

    def save(self, state: Any) -> None:
        """Replace the state. Raises UserCodeError if it is not plain JSON data or is too large, FencedError if the
        process was restarted in the meantime, StorageError."""
        try:
            data = json.dumps(plain({"state": state}), allow_nan=False).encode()
        except (RayTrainWorkflowsError, ValueError) as exc:
            raise UserCodeError(f"step.save: {getattr(exc, 'message', exc)}") from None
        if len(data) > STATE_BYTES:
            raise UserCodeError(
                f"step.save: got a state of {len(data):,} bytes; expected at most {STATE_BYTES:,}: write the data to"
                " step.output() and save where it is"
            )
        Fence(self.run, self.attempt).check()
        if self._file(self.start + 1, "started").is_file():
            raise FencedError(f"the step's process was started again: start {self.start} stops writing")
        self._file(self.start, "json").write(data)

    @property
    def output(self) -> Location:
        """The folder of the step's own files, the same for all attempts."""
        return RunDir.at(self.run).location.child("output")

    @property
    def _folder(self) -> Location:
        return RunDir.at(self.run).step.child("state")

    def _file(self, start: int, suffix: str) -> Location:
        return self._folder.child(f"{self.attempt:06d}-{start:06d}.{suffix}")
