"""Read a run's ledger: one listing, the newest segment of its journal, and a few small files, however long the run is.

A journal that an earlier version wrote, or one whose newest segment is damaged, is read whole.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any

from plugin_core.errors import RayTrainWorkflowsError
from plugin_core.runs.attempts import FOLDER, Phase, file_name
from plugin_core.runs.directory import RunDir
from plugin_core.runs.journal import JournalReader, newest_segment
from plugin_core.runs.ledger import Ledger, of_entry
from plugin_core.runs.overview import SILENT_S, WAITING_S
from plugin_core.specs.json_values import is_time
from plugin_core.specs.references import REGISTRY_FOLDER
from plugin_core.storage.location import Location, numbered
from plugin_core.storage.stored_files import parse_line
from plugin_core.storage.threads import THREADS, parallel


def ledger_of(rundir: RunDir) -> Ledger:
    """The ledger of a run so far. Raises StorageError."""
    times = rundir.step.times()
    ledger, entries = _newest(rundir, times)
    attempts = _attempts(times)
    for attempt in attempts:
        ledger = _closed(_through(rundir, ledger, attempt, times, entries), rundir, attempt, times, attempt == attempts[-1])
    return ledger


def ledgers(storage: Location, since: float = 0.0) -> tuple[dict[str, Ledger], dict[str, str]]:
    """The ledgers of a storage's runs that were active after `since` (seconds since the epoch), by name; and for those
    that cannot be read, the reason. Raises StorageError if the storage itself cannot be listed."""

    def of(name: str) -> Ledger | str:
        try:
            return ledger_of(RunDir.at(storage.child(name).uri))
        except RayTrainWorkflowsError as exc:
            return exc.message

    names = [name for name in storage.folders() if name != REGISTRY_FOLDER]
    found = dict(zip(names, parallel(of, names, THREADS), strict=True))
    read = {name: each for name, each in found.items() if isinstance(each, Ledger) and each.attempt and each.until >= since}
    return read, {name: each for name, each in found.items() if isinstance(each, str)}


def ledger_before(rundir: RunDir, attempt: int, phases: Iterable[Phase]) -> Ledger:
    """The ledger when an attempt begins its work; `phases`: its driver's so far. Raises StorageError."""
    times = rundir.step.times()
    ledger, entries = _newest(rundir, times)
    for former in _attempts(times):
        if former < attempt:
            ledger = _closed(_through(rundir, ledger, former, times, entries), rundir, former, times, last=False)
    return _through(rundir, ledger, attempt, times, entries, phases)


def _attempts(times: Mapping[str, float]) -> list[int]:
    return numbered([name.removeprefix(f"{FOLDER}/") for name in times])


class _Entries:
    """A journal's entries, by attempt."""

    def __init__(self, reader: JournalReader):
        self._entries = iter(reader)
        self._next = next(self._entries, None)

    def of(self, attempt: int) -> Iterator[dict[str, Any]]:
        """The entries of an attempt, and any left over from earlier ones."""
        while self._next is not None and self._next.get("attempt", 0) <= attempt:
            found, self._next = self._next, next(self._entries, None)
            yield found


def _newest(rundir: RunDir, times: Mapping[str, float]) -> tuple[Ledger, _Entries]:
    """The newest ledger in the journal, and the entries since; an empty one, and all entries, if there is none."""
    newest = newest_segment(name.removeprefix("journal/") for name in times if name.startswith("journal/"))
    lines = (rundir.step.child("journal", newest).read() or b"").splitlines() if newest else []
    for number in reversed(range(len(lines))):
        if (ledger := of_entry(parse_line(lines[number]) or {})) is not None:
            return ledger, _Entries(JournalReader(rundir, {newest: number}))
    return Ledger(), _Entries(JournalReader(rundir))


def _through(
    rundir: RunDir,
    ledger: Ledger,
    attempt: int,
    times: Mapping[str, float],
    entries: _Entries,
    phases: Iterable[Phase] | None = None,
) -> Ledger:
    """The ledger after everything that an attempt has recorded."""
    if attempt < ledger.attempt:
        return ledger
    after = ledger.until if attempt == ledger.attempt else 0.0
    if attempt > ledger.attempt:
        ledger = ledger.attempted(attempt, times.get(f"{FOLDER}/{file_name(attempt)}", ledger.until))
    known = rundir.phases(attempt) if phases is None else phases
    entered = [(phase.time, phase) for phase in known if is_time(phase.time) and phase.time > after]
    mine = ((entry["time"], entry) for entry in entries.of(attempt) if is_time(entry.get("time")))
    events: Iterator[tuple[float, Any]] = heapq.merge(entered, mine, key=itemgetter(0))
    for _, event in events:
        ledger = ledger.phase(event) if isinstance(event, Phase) else ledger.entry(event)
    return ledger


def _closed(ledger: Ledger, rundir: RunDir, attempt: int, times: Mapping[str, float], last: bool) -> Ledger:
    """The ledger after an attempt's end or, if it is still running, until now."""
    if attempt < ledger.attempt:
        return ledger
    ended = times.get(f"{FOLDER}/{file_name(attempt, 'end')}")
    beat = times.get(f"{FOLDER}/{file_name(attempt, 'beat')}")
    if ended is not None and (end := rundir.end(attempt)) is not None:
        if beat is not None and ended - max(beat, ledger.until) > SILENT_S:
            ended = beat  # who found it dead recorded that later; what counts is its last sign of life
        return ledger.ended(ended, end.outcome == "succeeded")
    now = time.time()
    if last and now - max(beat or 0.0, ledger.until) < (WAITING_S if beat is None else SILENT_S):
        return ledger.at(now)
    return ledger.died(beat or ledger.until)
