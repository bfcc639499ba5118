"""TensorBoard: event files, written with its own writer and readable from the run directory during the run."""

from __future__ import annotations

import time

from plugin_core.specs.tracking import TensorBoard
from plugin_core.tracking.backend import Backend, Entry
from plugin_core.tracking.staged import Staged

#: Seconds between two copies to storage.
PUSH_S = 10.0


class TensorBoardBackend(Backend):
    config: TensorBoard

    def begin(self) -> int:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._staged = Staged(self.subject, "tensorboard")
        self._writer = EventFileWriter(str(self._staged.folder))
        self._pushed = 0.0
        self.url = self._staged.place.uri
        return 0

    def log(self, entries: list[Entry]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        for entry in entries:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in entry.metrics.items()]
            self._writer.add_event(Event(wall_time=entry.time, step=entry.step, summary=Summary(value=values)))
        if time.monotonic() - self._pushed > PUSH_S:
            self._push()

    def _push(self) -> None:
        self._writer.flush()
        self._staged.push()
        self._pushed = time.monotonic()

    def end(self, status: str, message: str) -> None:
        self.leave()

    def leave(self) -> None:
        self._writer.close()
        self._staged.close()


BACKEND = TensorBoardBackend
