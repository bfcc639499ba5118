"""The journal: every `ray.train.report`, in the order in which the controller received them, on storage.

One writer (the Ray Train controller of an attempt) appends lines to the open segment and replaces it on storage at most
once a second; a full segment is closed and the next one opened. Object stores have no append, and small segments keep a
replace cheap. A segment of `SEGMENT_BYTES` or more on storage never changes again; readers rely on that.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from plugin_core.errors import FencedError, StorageError
from plugin_core.runs import timings
from plugin_core.runs.directory import RunDir
from plugin_core.runs.fence import Fence
from plugin_core.runs.ledger import Ledger, stored
from plugin_core.specs.json_values import is_number
from plugin_core.storage.stored_files import index_of as index_of
from plugin_core.storage.stored_files import parse_line

#: A segment of at least this many bytes is closed when written.
SEGMENT_BYTES = 64 * 1024
#: Lines appended between two flushes go into one segment, and so one request, up to this many bytes.
SEGMENT_MAX_BYTES = 512 * 1024
#: The most bytes in a line, far below what a reader accepts in a segment.
LINE_BYTES = 16 * 2**20
#: How many metrics are kept of a report whose line would be longer.
NUMBERS = 1000
#: A reader that knows the newest attempt looks up the next segment by name, and lists the folder only once in this many
#: rounds, in case a segment was deleted.
LIST_EVERY = 16

logger = logging.getLogger(__name__)


_writers: weakref.WeakSet[JournalWriter] = weakref.WeakSet()


def flush_writers() -> None:
    """Flush all open journals of this process now."""
    for writer in list(_writers):
        writer.flush()


class _Segment:
    """Lines that may not be on storage yet. `written`: how many bytes are."""

    def __init__(self, number: int):
        self.number = number
        self.data = bytearray()
        self.written = 0
        self.closed = False


class JournalWriter:
    """Appends reports. Never raises, because an exception in the controller would end the training.

    Failed writes are kept in memory and retried; writing stops once a later attempt owns the run.

    `ledger`: the run's ledger so far; the first entry of each segment contains it.
    """

    def __init__(self, rundir: RunDir, attempt: int, ledger: Ledger | None = None):
        self._dir = rundir.step.child("journal")
        self._attempt = attempt
        self._ledger = ledger
        self._fence = Fence(rundir.uri, attempt)
        self._lock = threading.Lock()
        self._flushing = threading.Lock()  # serialises flushes, or an older state might overwrite a newer one
        self._segments = [_Segment(1)]  # the last one is open
        self._before: int | None = None  # segments that this attempt already has: it may resume a trial
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._flush_loop, daemon=True, name="journal")
        self._thread.start()
        _writers.add(self)

    def append(self, entry: dict[str, Any]) -> None:
        entry = {"attempt": self._attempt, "time": time.time(), **entry}
        with self._lock:
            if self._segments[-1].closed:
                self._segments.append(_Segment(self._segments[-1].number + 1))
            segment = self._segments[-1]
            if self._ledger is None:
                segment.data += _line(entry)
            else:
                segment.data += _line(entry if segment.data else {**entry, **stored(self._ledger)})
                self._ledger = self._ledger.entry(entry)
            segment.closed = len(segment.data) >= SEGMENT_MAX_BYTES

    def unwritten(self, at_most: int) -> bytes:
        """The lines that may not be on storage yet; only the last ones if there are more than `at_most` bytes."""
        with self._lock:
            lines = b"".join(bytes(segment.data[segment.written :]) for segment in self._segments)
        return lines if len(lines) <= at_most else lines[-at_most:].partition(b"\n")[2]

    def close(self) -> None:
        self._stop.set()
        self._thread.join(timeout=30)
        self.flush()

    def _flush_loop(self) -> None:
        while not self._stop.wait(timings.FLUSH_S):
            self.flush()

    def flush(self) -> None:
        """Write all pending lines now."""
        with self._flushing:
            while (pending := self._pending()) is not None and self._write(*pending):
                pass

    def _pending(self) -> tuple[_Segment, bytes] | None:
        """The first segment that is not fully on storage, and its content; None if there is none."""
        with self._lock:
            # keep the last segment even if it is written, for its number
            self._segments = [s for s in self._segments[:-1] if s.written < len(s.data)] + self._segments[-1:]
            for segment in self._segments:
                if segment.written < len(segment.data):
                    segment.closed = segment.closed or len(segment.data) >= SEGMENT_BYTES
                    return segment, bytes(segment.data)
        return None

    def _write(self, segment: _Segment, data: bytes) -> bool:
        try:
            self._fence.check(cached=True)
            if self._before is None:
                places = (_place_of(name) for name in self._dir.names(after=_before(self._attempt, 1)) if is_segment(name))
                self._before = max((number for attempt, number in places if attempt == self._attempt), default=0)
            self._dir.child(segment_name(self._attempt, self._before + segment.number)).write(data)
        except FencedError as exc:
            logger.warning("journal: %s", exc)
            self._stop.set()
            return False
        except StorageError as exc:
            logger.warning("journal: %s; keeping the lines in memory and retrying", exc)
            return False
        segment.written = len(data)  # an open segment may have grown meanwhile; only this prefix was written
        return True


class JournalReader:
    """Reads each entry once, starting at a position. Blocking; holds one segment in memory.

    `for entry in reader` ends when there are no more entries yet; loop again later for new ones. Code that must not block
    between entries calls `fetch` in a thread, then iterates `entries`.

    `position`: another reader's position. `attempt`: the newest attempt if the caller knows it (0: unknown), which saves
    listing the journal's folder; may be updated at any time.
    """

    def __init__(self, rundir: RunDir, position: dict[str, int] | None = None, attempt: int = 0):
        self.attempt = attempt
        self._dir = rundir.step.child("journal")
        self._name, self._lines = "", 0
        self._full, self._version = False, ""
        self._unread: deque[bytes] = deque()
        self._ahead: deque[str] | None = None
        self._probing = False
        self._rounds = 0
        self._fetches = 0
        self.go_to(position or {})

    @property
    def position(self) -> dict[str, int]:
        """Segment name → lines read; all earlier segments are read completely. Empty: nothing was read."""
        return {self._name: self._lines} if self._name else {}

    def go_to(self, position: dict[str, int]) -> None:
        """Continue from a position; positions of earlier versions name all segments."""
        if position:
            self._name = max(position, key=_place_of)
            self._lines = position[self._name]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while self.fetch():
            yield from self.entries()

    def entries(self) -> Iterator[dict[str, Any]]:
        """The fetched entries; the position advances with each."""
        while self._unread:
            line = self._unread.popleft()
            self._lines += 1
            if (entry := _parse(line, self._name)) is not None:
                yield entry

    def fetch(self) -> bool:
        """Read the next segment with new entries; False if there is none yet. Raises StorageError."""
        self._fetches += 1
        mine = self._fetches
        while not self._unread:
            if self._ahead is None:
                names = self._candidates()
                if mine != self._fetches:
                    return False  # the storage hung, and a later fetch replaced this one
                self._ahead = deque(names)
            if not self._ahead:
                self._ahead = None
                return False
            name = self._ahead[0]
            found = self._dir.child(name).read_since(self._version if name == self._name else "")
            if mine != self._fetches:
                return False
            self._ahead.popleft()  # only after a successful read, so that a failed one is retried
            self._take(name, *found)
        return True

    def read(self) -> list[dict[str, Any]]:
        """All new entries."""
        return list(self)

    def _candidates(self) -> list[str]:
        """The segments that may have new entries, in order."""
        self._rounds += 1
        place = _place_of(self._name) if self._name else (0, 0)
        self._probing = self.attempt == place[0] > 0 and self._rounds % LIST_EVERY != 0
        if self._probing:
            return [self._following() if self._full else self._name]
        names = filter(is_segment, self._dir.names(after=_before(*place)))
        return sorted((name for name in names if _place_of(name) >= place), key=_place_of)

    def _take(self, name: str, data: bytes | None, version: str) -> None:
        if data is None:
            return
        if name != self._name:
            self._name, self._lines = name, 0
        self._version, self._full = version, len(data) >= SEGMENT_BYTES
        self._unread.extend(data.splitlines()[self._lines :])
        if self._probing and self._full and self._ahead is not None:
            self._ahead.append(self._following())

    def _following(self) -> str:
        attempt, number = self._name.partition(".")[0].split("-")
        return f"{attempt}-{int(number) + 1:0{len(number)}}.jsonl"


def iter_reports(rundir: RunDir) -> Iterator[dict[str, Any]]:
    """The reports so far, in order, with one segment in memory; reports repeated by a later attempt appear twice."""
    return (entry for entry in JournalReader(rundir) if "report" in entry)


def read_reports(rundir: RunDir) -> list[dict[str, Any]]:
    """`iter_reports` as a list, for a journal known to be short."""
    return list(iter_reports(rundir))


def last_report(rundir: RunDir, segments: Iterable[str]) -> dict[str, Any] | None:
    """The last report in the newest of these segments: one read, however long the journal is."""
    newest = newest_segment(segments)
    data = rundir.step.child("journal", newest).read() if newest else None
    entries = map(parse_line, reversed((data or b"").splitlines()))
    return next((entry for entry in entries if entry and "report" in entry), None)


def newest_segment(names: Iterable[str]) -> str:
    """The name of the newest segment; "" if there is none."""
    return max(filter(is_segment, names), key=_place_of, default="")


def is_segment(name: str) -> bool:
    return re.fullmatch(r"\d+-\d+\.jsonl", name) is not None


def segment_name(attempt: int, number: int) -> str:
    """Names sort in numerical order, so that a reader can list from its position."""
    return f"{attempt:03}-{number:07}.jsonl"


def _line(entry: dict[str, Any]) -> bytes:
    line = _json_line(entry)
    if len(line) > LINE_BYTES:
        logger.warning("journal: a report has %.0f MB of metrics; only its numbers are kept", len(line) / 1e6)
        line = _json_line(_numbers_of(entry))
    return line


def _json_line(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry).encode() + b"\n"


def _numbers_of(entry: dict[str, Any]) -> dict[str, Any]:
    """A report without what may have any size: other ranks' metrics, and rank 0's metrics that are not numbers."""
    numbers = [(name, value) for name, value in entry.get("metrics", {}).items() if is_number(value) and len(name) < 1000]
    return {**entry, "metrics": dict(numbers[:NUMBERS]), **({"ranks": []} if "ranks" in entry else {})}


def _place_of(segment: str) -> tuple[int, int]:
    """A segment's attempt and number, its sort key (earlier versions wrote 9999, then 10000)."""
    attempt, number = re.findall(r"\d+", segment)
    return int(attempt), int(number)


def _before(attempt: int, number: int) -> str:
    """A name that sorts before this segment and all later ones."""
    if not 0 < attempt < 999:
        return ""
    # an earlier version's shorter numbers all sort after this; our names before `number` are skipped
    return segment_name(attempt, max(0, number - 1)) if number < 10**7 else f"{attempt:03}-"


def _parse(line: bytes, name: str) -> dict[str, Any] | None:
    entry = parse_line(line)
    if entry is None:
        # a segment is replaced as a whole, so something else damaged it; the other lines are intact
        logger.warning("journal: skipping a damaged line in %s: %.80r", name, line)
    return entry
