"""The logs of a run's processes, kept in its directory so that they outlive the cluster.

    .step/logs/ATTEMPT/driver/…        the job's log, including what Ray forwards from the workers           (driver)
    .step/logs/ATTEMPT/rank-RRR/…      what each worker of a training printed                                (workers)

A log is a series of segments, `PROCESS-POSITION.log`. PROCESS is when the process began to keep it, in milliseconds, so
that a restarted worker overwrites nothing; POSITION is where the segment begins, in characters. The last segment grows.
Of a long log, the beginning and the end are kept; the positions show what is missing in between.
"""

from __future__ import annotations

import re
from collections import deque

from plugin_core.runs.directory import RunDir
from plugin_core.storage.location import Location

DRIVER = "driver"
#: The most characters of a segment.
ROOM = 2 * 2**20
_NAME = re.compile(r"(\d{13})-(\d{12})\.log")


def rank_folder(rank: int) -> str:
    return f"rank-{rank:03}"


def log_folder(rundir: RunDir, attempt: int, whose: str = "") -> Location:
    """The folder with the kept log of one process of an attempt: `DRIVER` or a `rank_folder`. "": the folder of all."""
    return rundir.step.child("logs", f"{attempt:03}", *([whose] if whose else []))


def segment_name(process: int, position: int) -> str:
    return f"{process:013}-{position:012}.log"


class KeptLog:
    """Reads the log of one process of an attempt (see `log_folder`) from a position on; each call reads what a growing
    log has added. Blocking."""

    def __init__(self, rundir: RunDir, attempt: int, whose: str, position: int = 0):
        self._run = rundir.location
        self._folder = log_folder(rundir, attempt, whose)
        self._from = position
        self._outside: set[str] = set()
        self._name = self._version = ""
        self._read = 0
        self._line_ended = True
        self._ahead: deque[str] = deque()

    @property
    def position(self) -> int:
        """How many characters of the latest process's log precede the next read."""
        return _place_of(self._name)[1] + self._read if self._name else 0

    def read(self) -> str:
        """The next text, at most a segment; "" if there is no more yet. Raises StorageError."""
        if not self._ahead:
            self._ahead = deque(self._segments())
        while self._ahead:
            name = self._ahead[0]
            place = self._folder.child(name)
            if self._run.inside(place.uri) is None:  # a link: the file may not be meant for whoever reads the log
                self._ahead.popleft()
                if name not in self._outside:
                    self._outside.add(name)
                    return f"… {name} is not shown: it leads out of the run\n"
                continue
            known = self._version if name == self._name else ""
            data, version = place.read_since(known, 4 * ROOM)
            self._ahead.popleft()  # after the read, so that a failed one is repeated
            if data is None:
                continue
            text = data.decode("utf-8", "replace")
            note = "" if name == self._name else self._go_to(name)
            new = text[self._read :]
            self._read, self._version = max(self._read, len(text)), version
            if note or new:
                self._line_ended = (note + new).endswith("\n")
                return note + new
        return ""

    def _segments(self) -> list[str]:
        names = [name for name in segments(self._folder) if name >= self._name]
        if self._from and not self._name:
            before = [name for name in names if _place_of(name)[1] <= self._from and name[:13] == names[0][:13]]
            return names[len(before) - 1 :] if before else names
        return names

    def _go_to(self, name: str) -> str:
        """Begin a segment. Returns a line about the restart or gap before it; "" if there is none."""
        process, begins = _place_of(name)
        before = _place_of(self._name)[0] if self._name else process
        ended = self.position if self._name else self._from
        self._name, self._read = name, 0
        if process != before:
            note = "… started again\n"
        elif begins <= ended:
            self._read = ended - begins
            return ""
        else:
            note = f"… {(begins - ended) / 1e6:.1f} MB of the log not kept\n"
        return note if self._line_ended else f"\n{note}"


def segments(folder: Location) -> list[str]:
    """The names of a log's segments, in order."""
    return sorted(name for name in folder.names() if _NAME.fullmatch(name))


def process_of(name: str) -> int:
    return _place_of(name)[0]


def _place_of(name: str) -> tuple[int, int]:
    process, position = name.removesuffix(".log").split("-")
    return int(process), int(position)
