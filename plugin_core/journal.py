"""The journal: every `ray.train.report`, in the order the controller saw them, on storage.

One writer (the Ray Train controller of an attempt) appends lines to the open segment and replaces it on storage at most
once a second; a full segment is closed and the next one begun. Object stores have no append, and small segments keep a
replace cheap. A reader keeps a position and never reads a line twice.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
import weakref
from dataclasses import dataclass, field
from typing import Any

from plugin_core.errors import FencedError, StorageError
from plugin_core.fence import Fence
from plugin_core.rundir import RunDir

FLUSH_S = 1.0
SEGMENT_BYTES = 64 * 1024

logger = logging.getLogger(__name__)


_writers: weakref.WeakSet[JournalWriter] = weakref.WeakSet()


def flush_writers() -> None:
    """Write what this process's open journals have not written yet, now."""
    for writer in list(_writers):
        writer.flush()


class JournalWriter:
    """Appends reports; never raises, since an exception in the controller would end the training.

    What cannot be written is kept in memory and tried again; nothing is written once a later attempt owns the run.
    """

    def __init__(self, rundir: RunDir, attempt: int):
        self._dir = rundir.step.child("journal")
        self._attempt = attempt
        self._fence = Fence(rundir.uri, attempt)
        self._lock = threading.Lock()
        self._flushing = threading.Lock()  # one after the other, or an older state might be written over a newer one
        self._closed: list[tuple[int, bytes]] = []
        self._open = b""
        self._sequence = 1
        self._dirty = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._flush_loop, daemon=True, name="journal")
        self._thread.start()
        _writers.add(self)

    def append(self, entry: dict[str, Any]) -> None:
        line = json.dumps({"attempt": self._attempt, "time": time.time(), **entry}).encode() + b"\n"
        with self._lock:
            self._open += line
            self._dirty = True
            if len(self._open) >= SEGMENT_BYTES:
                self._closed.append((self._sequence, self._open))
                self._open, self._sequence = b"", self._sequence + 1

    def close(self) -> None:
        self._stop.set()
        self._thread.join(timeout=30)
        self.flush()

    def _flush_loop(self) -> None:
        while not self._stop.wait(FLUSH_S):
            self.flush()

    def flush(self) -> None:
        """Write what is not written yet, now."""
        with self._flushing:
            self._flush()

    def _flush(self) -> None:
        with self._lock:
            if not self._dirty:
                return
            pending = [*self._closed, *([(self._sequence, self._open)] if self._open else [])]
            self._dirty = False
        for sequence, data in pending:
            try:
                self._fence.check(cached=True)
                self._dir.child(f"{self._attempt:03}-{sequence:04}.jsonl").write(data)
            except FencedError as exc:
                logger.warning("journal: %s", exc)
                self._stop.set()
                return
            except StorageError as exc:
                logger.warning("journal: %s; kept in memory and tried again", exc)
                with self._lock:
                    self._dirty = True
                return
            with self._lock:
                # one that filled up meanwhile is not written yet: what was written is its beginning
                self._closed = [item for item in self._closed if item != (sequence, data)]


@dataclass
class JournalReader:
    """Reads on from where it stopped. Blocking; `read()` returns the entries that are new."""

    rundir: RunDir
    #: by segment: the position
    lines_seen: dict[str, int] = field(default_factory=dict)

    def read(self) -> list[dict[str, Any]]:
        return [entry for segment in self.unread() for entry in self.read_segment(segment)]

    def unread(self) -> list[str]:
        """The segments that may hold new entries, in order; each is small, however long the journal."""
        names = [name for name in self.rundir.step.child("journal").names() if re.fullmatch(r"\d+-\d+\.jsonl", name)]
        last_seen = max(map(_place_of, self.lines_seen), default=(0, 0))
        return sorted((name for name in names if _place_of(name) >= last_seen), key=_place_of)

    def read_segment(self, name: str) -> list[dict[str, Any]]:
        """The entries of one of the segments that are new."""
        data = self.rundir.step.child("journal", name).read() or b""
        lines = data.splitlines()
        new = lines[self.lines_seen.get(name, 0) :]
        self.lines_seen[name] = len(lines)
        return list(filter(None, (_parse(line, name) for line in new)))


def read_reports(rundir: RunDir) -> list[dict[str, Any]]:
    """The reports so far, in order; those that a later attempt repeated stand there twice."""
    return [entry for entry in JournalReader(rundir).read() if "report" in entry]


def index_of(entry: dict[str, Any]) -> int:
    """The report's number as if nothing had been killed (see `steps.callbacks`); older journals have none."""
    return int(entry.get("index", entry["report"]))


def _place_of(segment: str) -> tuple[int, int]:
    """Its attempt and number, by which the segments are in order (10000 comes after 9999)."""
    attempt, number = re.findall(r"\d+", segment)
    return int(attempt), int(number)


def _parse(line: bytes, name: str) -> dict[str, Any] | None:
    try:
        entry: dict[str, Any] = json.loads(line)
    except ValueError:
        # a segment is replaced as a whole, so this is damage from outside; the other lines are as good as ever
        logger.warning("journal: %s holds a line that is no JSON; it is passed over: %.80r", name, line)
        return None
    return entry
