"""Keeps what the driver and the workers of a training print in the run directory (see `runs/kept_log.py`)."""

from __future__ import annotations

import logging
import os
import re
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

from plugin_core.driver import masking
from plugin_core.errors import StorageError
from plugin_core.errors.plain_text import Text
from plugin_core.runs import timings
from plugin_core.runs.directory import RunDir
from plugin_core.runs.kept_log import DRIVER, ROOM, log_folder, process_of, rank_folder, segment_name, segments
from plugin_core.storage.location import Location

#: A segment of at least this many characters is closed when written. At most `ROOM` characters of it are in memory, and as
#: many of what follows it; if more follow, the last ones.
SEGMENT = 2**20
#: The most characters kept of one process, and of those how many from its beginning.
KEPT, KEPT_HEAD = 64 * 2**20, 16 * 2**20
#: If a worker is restarted again and again, the logs of its first process, of the current one and of this many before it
#: are kept.
PROCESSES = 8
#: A line is read once it is complete; a longer one is read in pieces, and half as many characters are held back.
LINE = 64 * 1024
#: Seconds between two looks at the local files.
LOOK_S = 1.0
#: Seconds for which its log may delay the end of a process.
END_S = 10.0

#: Lines that tell Ray's own reader of a worker's file whose output follows.
_RAYS_MARKS = re.compile(r"^:(?:job_id|actor_name|task_name):.*\n", re.MULTILINE)

logger = logging.getLogger(__name__)


def of_driver(rundir: RunDir, attempt: int) -> LogKeeper:
    """The log of this job: Ray sends the driver's output to a file, and the driver prints what the workers print."""
    paths = dict.fromkeys(path for path in (_file_behind(1), _file_behind(2)) if path)
    return LogKeeper(log_folder(rundir, attempt, DRIVER), paths, masking.masked)


def of_worker(run_uri: str, attempt: int, rank: int) -> LogKeeper:
    from plugin_core.ray_internals import worker

    folder = log_folder(RunDir.at(run_uri), attempt, rank_folder(rank))
    return LogKeeper(folder, worker.output_files(), masking.masked, _RAYS_MARKS)


def _file_behind(descriptor: int) -> str:
    """The path of the regular file that a descriptor writes to; "" if it is a terminal, a pipe or closed."""
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return ""
    if not stat.S_ISREG(mode):
        return ""
    if sys.platform == "darwin":
        import fcntl

        return os.fsdecode(fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0"))
    return os.readlink(f"/proc/self/fd/{descriptor}")


@dataclass
class _Segment:
    position: int
    text: str = ""
    written: int = 0


class _Source:
    """A growing local file, as text without escape codes. Once it is rotated, the next one of the same name."""

    def __init__(self, path: str, mask: Callable[[str], str], leave_out: re.Pattern[str] | None):
        self._path = path
        self._mask = mask
        self._leave_out = leave_out
        self._file: BinaryIO = open(path, "rb")  # noqa: SIM115 - open as long as the process lives
        self._text = Text()
        self._held = ""

    def lines(self, final: bool) -> tuple[int, str]:
        """How many characters are skipped, and the new whole lines after them. `final`: also an incomplete line."""
        begun = self._file.tell()
        skipped = max(0, os.fstat(self._file.fileno()).st_size - begun - ROOM)
        if skipped:
            self._file.seek(begun + skipped)
            self._text, self._held, skipped = Text(), "", skipped + len(self._held)
        data = self._file.read(ROOM) or self._after_rotation()
        text = self._mask(self._held + (self._text.feed(data) if data else ""))
        if skipped:
            cut = text.find("\n") + 1
            skipped, text = skipped + cut, text[cut:]
        end = text.rfind("\n") + 1
        if final:
            end = len(text)
        elif len(text) - end > LINE:
            end = len(text) - LINE // 2  # the rest may end with the beginning of a secret
        self._held, text = text[end:], text[:end]
        return skipped, self._leave_out.sub("", text) if self._leave_out else text

    def close(self) -> None:
        self._file.close()

    def _after_rotation(self) -> bytes:
        with suppress(FileNotFoundError):
            if not os.path.samestat(os.stat(self._path), os.fstat(self._file.fileno())):
                if data := self._file.read(ROOM):  # written before the rotation, and after our last read
                    return data
                self._file.close()
                self._file = open(self._path, "rb")  # noqa: SIM115 - as above
                return self._file.read(ROOM)
        return b""


class LogKeeper:
    """Copies what this process prints, from the local files that Ray sends it to, to a folder of the run directory.

    A thread writes what is new, if anything, at most once per `LOG_FLUSH_S`. It reads the files rather than standing
    between the process and them, so it delays nothing, and failing storage only costs a warning. `mask` hides secrets
    in whole lines; `leave_out` matches lines that are not output.
    """

    def __init__(
        self,
        folder: Location,
        paths: Iterable[str],
        mask: Callable[[str], str] = str,
        leave_out: re.Pattern[str] | None = None,
    ):
        self._folder = folder
        self._paths = list(paths)
        self._leave_out = leave_out
        self._mask = mask
        self._process = time.time_ns() // 10**6
        self._end = 0
        self._open = _Segment(0)
        self._rest: _Segment | None = None  # what does not fit into the open segment until the next write
        self._kept_head = 0
        self._kept_tail: deque[tuple[str, int]] = deque()
        self._due = 0.0
        self._warned = self._closing = self._begun = False
        self._asked, self._answered = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True, name="kept-log")
        if self._paths:
            self._thread.start()

    def flush(self) -> None:
        """Write everything printed so far; returns after `END_S` in any case. May be called again."""
        if self._thread.is_alive():
            self._answered.clear()
            self._asked.set()
            self._answered.wait(END_S)

    def close(self) -> None:
        self.flush()
        self._closing = True

    def _loop(self) -> None:
        sources: list[_Source] = []
        while not self._closing:
            asked = self._asked.wait(LOOK_S)
            self._asked.clear()
            try:
                while self._paths:
                    sources.append(_Source(self._paths.pop(0), self._mask, self._leave_out))
                self._look(sources, final=asked)
            except Exception as exc:  # noqa: BLE001 - the log of a training must not end it
                self._warn(exc.message if isinstance(exc, StorageError) else f"{type(exc).__name__}: {exc}")
            if asked:
                self._answered.set()
        for source in sources:
            source.close()

    def _warn(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("the kept log may be incomplete: %s; the step goes on", self._mask(why))

    def _look(self, sources: list[_Source], final: bool) -> None:
        for stream in (sys.stdout, sys.stderr) if final else ():
            with suppress(OSError, ValueError, AttributeError):  # closed, or none
                stream.flush()
        for source in sources:
            self._add(*source.lines(final))
        if final or time.monotonic() >= self._due:
            self._write()

    def _add(self, skipped: int, text: str) -> None:
        self._end += skipped
        if skipped or (self._rest is None and len(self._open.text) + len(text) > ROOM):
            self._rest = _Segment(self._end)
        part = self._rest or self._open
        part.text += text
        self._end += len(text)
        if len(part.text) > ROOM:
            cut = part.text.find("\n", len(part.text) - ROOM) + 1 or len(part.text) - ROOM
            part.position, part.text = part.position + cut, part.text[cut:]

    def _write(self) -> None:
        if len(self._open.text) > self._open.written:
            self._put(self._open)
        if self._rest is not None:
            following, self._rest = self._rest, None
            self._close(following)
            self._put(self._open)
        if len(self._open.text) >= SEGMENT:
            self._close(_Segment(self._end))

    def _put(self, segment: _Segment) -> None:
        self._due = time.monotonic() + timings.LOG_FLUSH_S  # also after a failure
        if segment.text:
            if not self._begun:
                self._begin()
            self._folder.child(self._name(segment)).write(segment.text.encode("utf-8", "replace"))
            segment.written = len(segment.text)

    def _begin(self) -> None:
        """Order this process after those that kept this log before, whatever the clock says. Of many, drop the logs in
        between."""
        names = segments(self._folder)
        before = sorted({process_of(name) for name in names})
        self._process = max(self._process, *(process + 1 for process in before)) if before else self._process
        for name in names:
            if process_of(name) in before[1:-PROCESSES]:
                self._folder.child(name).delete()
        self._begun = True

    def _name(self, segment: _Segment) -> str:
        return segment_name(self._process, segment.position)

    def _close(self, following: _Segment) -> None:
        """Continue with the following segment; drop the oldest ones of neither the beginning nor the end."""
        closed, self._open = self._open, following
        size = len(closed.text)
        if not self._kept_tail and self._kept_head + size <= KEPT_HEAD:
            self._kept_head += size
            return
        self._kept_tail.append((self._name(closed), size))
        while sum(size for _, size in self._kept_tail) > KEPT - KEPT_HEAD:
            self._folder.child(self._kept_tail[0][0]).delete()
            self._kept_tail.popleft()  # after the deletion, so that a failed one is repeated
