"""The side of the tracker that runs on the cluster."""

from __future__ import annotations

import json

from acme_raytrain.lines import Lines
from plugin_core.tracking.backend import Backend, Entry
from plugin_core.tracking.staged import Staged


class LinesBackend(Backend):
    config: Lines

    def begin(self) -> int:
        self._staged = Staged(self.subject, "lines")
        self._file = self._staged.folder / self.config.file
        self.url = self._staged.place.uri
        return 0  # it has no report yet: all are logged again

    def log(self, entries: list[Entry]) -> None:
        with self._file.open("a") as file:
            for entry in entries:
                file.write(json.dumps({"step": entry.step, "metrics": entry.metrics}) + "\n")

    def end(self, status: str, message: str) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps({"status": status}) + "\n")
        self._staged.close()

    def leave(self) -> None:
        self._staged.close()
