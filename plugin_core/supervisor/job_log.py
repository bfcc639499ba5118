"""Reads a job's log incrementally from a position, whatever its length.

Ray's state API streams the whole log or its last lines, but supports no offset. A short log is read whole each time. Of
a long log, only the last lines are read, and the text shown last is located in them. If it is not found there, or the
log repeats itself, the whole log is streamed again, as it is at the job's end. Memory holds only what is about to be
shown; if there are more than `SHOWN` new characters, their beginning and end.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from plugin_core.errors import CLUSTER_ERRORS
from plugin_core.errors.plain_text import Text

if TYPE_CHECKING:
    from plugin_core.clusters.jobs_api import JobInfo, JobsClient, LogStream

#: The most characters of a log shown at once.
SHOWN = 2_000_000
#: Seconds that one look may read; and those for the look after the job's end, past which only the log's end is shown.
LOOK_S, FINAL_S = 5.0, 60.0
#: A log of up to this many characters is read whole each time.
SHORT = 64 * 1024
#: The last `ANCHOR` characters shown are searched for in the log's last lines, at first `LINES` of them. They must not
#: occur twice in the last `WINDOW` characters shown.
ANCHOR, WINDOW, LINES = 8 * 1024, 32 * 1024, 500
#: Reading again waits this many times as long as the last read took.
PAUSE = 10.0
#: Size of a piece shown at once; in between, control returns to the event loop that many runs share.
PIECE_LINES, PIECE_CHARS = 100, 32 * 1024


class JobLog:
    """The log of one job. `position`: how many characters were shown or skipped."""

    def __init__(self, submission_id: str, position: int = 0):
        self.submission_id = submission_id
        self.position = position
        self._due = 0.0
        self._over = False
        self._last = ""  # the end of what was shown
        self._lines = LINES
        self._whole: _Whole | None = None

    async def read(self, client: JobsClient, job: JobInfo, final: bool) -> AsyncIterator[str]:
        """Yield what is new, in pieces of whole lines; the position moves with each. Raises one of CLUSTER_ERRORS.

        `final`: the job has ended, so read everything that time allows, including a last line without a line end.
        """
        began = time.monotonic()
        if not job.node_id or self._over or (began < self._due and not final):
            return
        try:
            new = None
            if self._whole is None and self.position >= SHORT and not final:
                new = await self._after_anchor(client, job)
            if new is not None:
                for piece in self._told(new[: new.rfind("\n") + 1]):
                    yield piece
                return
            async for piece in self._read_whole(client, job, final):
                yield piece
        except CLUSTER_ERRORS:
            self.close()
            raise
        finally:
            if self._whole is None:
                now = time.monotonic()
                self._due = now + PAUSE * (now - began)

    def close(self) -> None:
        if self._whole is not None:
            self._whole.stream.close()
            self._whole = None

    def _told(self, text: str) -> Iterator[str]:
        for piece in pieces(text):
            self.position += len(piece)
            self._last = (self._last + piece)[-WINDOW:]
            yield piece

    async def _after_anchor(self, client: JobsClient, job: JobInfo) -> str | None:
        """Return what follows the text shown last; None if only the whole log can tell."""
        anchor = self._last[-ANCHOR:]
        if len(anchor) < ANCHOR or self._last.find(anchor) < len(self._last) - ANCHOR:
            return None
        before = 0
        while True:
            tail = await self._last_lines(client, job)
            found = tail.find(anchor) if tail is not None else -1
            if tail is None or (found < 0 and len(tail) <= before):
                return None  # too much is new, or it is a different log
            if found >= 0:
                if tail.count("\n", found) < self._lines // 4:
                    self._lines = max(LINES, self._lines // 2)
                again = tail.find(anchor, found + 1) >= 0
                return None if again else tail[found + ANCHOR :]
            before = len(tail)
            self._lines *= 4

    async def _last_lines(self, client: JobsClient, job: JobInfo) -> str | None:
        """Return the log's last lines; None if they are too long."""
        stream = await client.open_log(job, self._lines)
        try:
            text, parts, size = Text(), [], 0
            while data := await stream.read():
                parts.append(text.feed(data))
                size += len(parts[-1])
                if size > SHOWN:
                    return None
            return "".join([*parts, text.feed(b"")])
        finally:
            stream.close()

    async def _read_whole(self, client: JobsClient, job: JobInfo, final: bool) -> AsyncIterator[str]:
        """Stream the whole log; the next look continues with what does not fit into this one."""
        until = time.monotonic() + (FINAL_S if final else LOOK_S)
        if self._whole is None:
            self._whole = _Whole(await client.open_log(job), self.position, self._last)
            self._last = ""
        whole = self._whole
        data = b"not read yet"
        while data and time.monotonic() < until:
            data = await whole.stream.read()
            ready = whole.feed(data)
            if whole.is_another():
                yield self._note("a part")  # the match in the last lines was a different place
            for piece in self._told(ready):
                yield piece
        if data and not final:
            return
        self.close()
        if data:
            self._over = True
            whole.end_with(await self._last_lines(client, job) or "")
        text, skipped = whole.rest(final)
        self._last = "" if skipped else (whole.before + self._last)[-WINDOW:]
        if skipped:
            self.position += skipped
            yield self._note("a part" if data else f"{skipped / 1e6:.1f} MB")
        for piece in self._told(text):
            yield piece

    def _note(self, what: str) -> str:
        return f"… {what} of the log not shown; `ray job logs {self.submission_id}` has all\n"


class _Whole:
    """A log from its beginning: returns what is past a position; after `SHOWN` / 2 characters keeps only the end."""

    def __init__(self, stream: LogStream, position: int, last: str):
        self.stream = stream
        self.text = Text()
        #: the text just before the position; it should end with what was shown last
        self.before = ""
        self._told_last = last[-ANCHOR:]
        self._ahead = position
        self._budget = SHOWN // 2
        self._held: deque[str] = deque()
        self._size = self._skipped = 0

    def feed(self, data: bytes) -> str:
        """Return whole lines to show now; empty data marks the end."""
        text = self.text.feed(data)
        if self._ahead:
            passed, text = text[: self._ahead], text[self._ahead :]
            self._ahead -= len(passed)
            self.before = (self.before + passed)[-WINDOW:]
        if self._budget <= 0:
            self._hold(text)
            return ""
        text = "".join([*self._held, text])
        end = text.rfind("\n", 0, self._budget) + 1
        self._budget -= end if len(text) <= self._budget else self._budget
        self._held.clear()
        self._size = 0
        self._hold(text[end:])
        return text[:end]

    def _hold(self, text: str) -> None:
        self._held.append(text)
        self._size += len(text)
        while self._size > SHOWN // 2:
            first = self._held.popleft()
            dropped = min(len(first), self._size - SHOWN // 2)
            if dropped < len(first):
                self._held.appendleft(first[dropped:])
            self._size -= dropped
            self._skipped += dropped

    def is_another(self) -> bool:
        """Whether the text before the position differs from what was shown; true only once."""
        if self._ahead or self.before.endswith(self._told_last):
            return False
        self._told_last = ""
        return True

    def end_with(self, tail: str) -> None:
        """Use this in place of what there is no time to stream."""
        self._skipped += self._size + 1
        self._held = deque([tail[-SHOWN // 2 :]])

    def rest(self, final: bool) -> tuple[str, int]:
        """Return the end, and how many characters before it are skipped."""
        text = "".join(self._held)
        if self._skipped:
            begin = text.find("\n") + 1
            self._skipped += begin
            text = text[begin:]
        return (text if final else text[: text.rfind("\n") + 1]), self._skipped


def pieces(text: str) -> Iterator[str]:
    """Split a text into parts of a few whole lines; longer lines are cut."""
    begin = 0
    while begin < len(text):
        end, limit = begin, min(begin + PIECE_CHARS, len(text))
        for _ in range(PIECE_LINES):
            newline = text.find("\n", end, limit)
            if newline < 0:
                end = limit if end == begin or limit == len(text) else end
                break
            end = newline + 1
        yield text[begin:end]
        begin = end
