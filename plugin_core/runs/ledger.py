"""The ledger of a run: where its time went, over all its attempts. Each second is one of `KINDS`.

It is folded, in chronological order, from what the run records anyway: receipts, the drivers' phases, the journal. Its
state is a few numbers, however long the run is. Each moment ends one kind and begins another, without gaps or overlaps.
Storage and each driver's machine have their own clocks; a moment before the last one counts as the last one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Literal, get_args

from annotated_types import Ge, Le
from pydantic import TypeAdapter, ValidationError

from plugin_core.runs.attempts import Phase
from plugin_core.specs.json_values import LATEST, MOST, is_count, is_number, is_time
from plugin_core.storage.stored_files import index_of

#: * queued: until the job runs and has its resources.
#: * starting: until the loop runs, the first time.
#: * useful: in the loop, for reports that are made for the first time.
#: * repeated: in the loop, for reports that were made before, and for those that a failure prevented.
#: * checkpointing: in the loop, blocked by `report()` with a checkpoint.
#: * recovering: from a failure until the loop runs again.
#: * hanging: from the last sign of progress until the hang was noticed.
#: * idle: between the end of an attempt and the next one, and from the loop's end to the attempt's.
Kind = Literal["queued", "starting", "useful", "repeated", "checkpointing", "recovering", "hanging", "idle"]
KINDS: tuple[Kind, ...] = get_args(Kind)
#: In the loop, since its last report: the next report decides which kind this was.
LOOP: Literal["loop"] = "loop"
Now = Kind | Literal["loop"]
#: Driver phases that a log shows but that only prepare the work. Any other phase, except waiting, is the work.
_PREPARES = {"starting", "training", "fitting the preprocessor", "reading the resumable datasets"}
#: States of a controller that follow a failure.
_FAILS = {"restarting", "rescheduling", "resizing", "failed", "errored", "aborted", "preempted"}

#: Limits on the values in a journal, which anybody may have written.
Moment = Annotated[float, Ge(0), Le(LATEST)]
Seconds = Annotated[float, Ge(0), Le(MOST)]
Count = Annotated[int, Ge(0), Le(MOST)]


@dataclass(frozen=True)
class Ledger:
    """`seconds`: per kind. `worker_seconds`: the same, summed over all workers; none before the first ones started.
    `began` and `until`: seconds since the epoch; `until` is the last moment counted. `index`: that of the latest
    report, see `journal_callback`. `workers`: how many there are now or, after a failure, were before it."""

    began: Moment = 0.0
    until: Moment = 0.0
    now: Now = "queued"
    seconds: dict[Kind, Seconds] = field(default_factory=dict)
    worker_seconds: dict[Kind, Seconds] = field(default_factory=dict)
    attempt: Count = 0
    index: Count = 0
    workers: Count = 0

    @property
    def total(self) -> float:
        """All seconds; for a single run, those from `began` to `until`."""
        return sum(self.seconds.values())

    def share_of(self, kind: Kind) -> float:
        """This kind's share of all time; for "useful", that is the effective training time."""
        return self.seconds.get(kind, 0.0) / self.total if self.total else 0.0

    @property
    def worker_s(self) -> float:
        return sum(self.worker_seconds.values())

    @property
    def lost_worker_s(self) -> float:
        """Seconds of workers that were running without advancing the model."""
        return self.worker_s - self.worker_seconds.get("useful", 0.0)

    @classmethod
    def together(cls, ledgers: Iterable[Ledger]) -> Ledger:
        """The sum of several runs; `began` is the earliest one's, `until` the latest one's."""
        found = list(ledgers)
        return cls(
            began=min((one.began for one in found), default=0.0),
            until=max((one.until for one in found), default=0.0),
            seconds=_sum(one.seconds for one in found),
            worker_seconds=_sum(one.worker_seconds for one in found),
            attempt=sum(one.attempt for one in found),
        )

    # ---- what a run records

    def attempted(self, attempt: int, time: float) -> Ledger:
        """A receipt was written."""
        if not self.attempt:
            return replace(self, attempt=attempt, began=time, until=time)
        return replace(self._then("recovering", time), attempt=attempt)

    def phase(self, phase: Phase) -> Ledger:
        """The driver entered a phase. One that only the timeline shows counts as preparation."""
        if phase.phase.startswith("waiting"):
            return self._then("queued", phase.time)
        prepares = not phase.shown or phase.phase in _PREPARES
        return self._then(self._preparing if prepares else "useful", phase.time)

    def entry(self, entry: Mapping[str, Any]) -> Ledger:
        """The journal has another entry."""
        phase = entry.get("phase")
        if not is_time(entry.get("time")):
            return self
        time = float(entry["time"])
        if "report" in entry:
            return self._reported(entry, time)
        if phase == "running" and is_count(entry.get("workers")):
            return replace(self._then(self.now, time), workers=int(entry["workers"]))
        if phase == "looping":
            return self._then(LOOP, time)
        if phase == "hanging" and "quiet_s" in entry:
            return self._hung(entry, time)
        if phase in ("shutting_down", "shuttingdown", "finished"):
            return self._then("idle", time)
        return self._failed(time, "recovering") if phase in _FAILS and self.now != "recovering" else self

    def ended(self, time: float, succeeded: bool) -> Ledger:
        """The attempt ended, or was last seen."""
        return self._then("idle", time) if succeeded else self._failed(time, "idle")

    def died(self, time: float) -> Ledger:
        """An attempt whose end nobody recorded gave its last sign of life."""
        return self._failed(time, "recovering")

    def at(self, time: float) -> Ledger:
        """The ledger so far; what the loop has done since its last report counts as useful."""
        return self._then(self.now, time)

    # ----

    @property
    def _preparing(self) -> Kind:
        return "recovering" if self.workers or self.attempt > 1 else "starting"

    def _then(self, now: Now, time: float) -> Ledger:
        """The current kind ends, without a failure."""
        return replace(self._spend("useful" if self.now == LOOP else self.now, time), now=now)

    def _failed(self, time: float, kind: Kind) -> Ledger:
        """What the loop did since its last report is lost and will be repeated."""
        return replace(self._spend("repeated" if self.now == LOOP else self.now, time), now=kind)

    def _reported(self, entry: Mapping[str, Any], time: float) -> Ledger:
        index = index_of(entry)
        if entry.get("late") is True:  # no loop is running yet
            return replace(self._then(self.now, time), index=max(index, self.index))
        kind: Kind = "useful" if index > self.index else "repeated"
        blocked = min(time, self.until + _seconds(entry.get("blocked_s")))
        return replace(self._spend("checkpointing", blocked)._spend(kind, time), now=LOOP, index=max(index, self.index))

    def _hung(self, entry: Mapping[str, Any], time: float) -> Ledger:
        since = time - _seconds(entry.get("quiet_s"))
        return self._failed(since, "hanging")._then("recovering", time)

    def _spend(self, kind: Kind, time: float) -> Ledger:
        took = time - self.until
        if took <= 0:
            return self
        seconds = {**self.seconds, kind: self.seconds.get(kind, 0.0) + took}
        of_workers = {**self.worker_seconds, kind: self.worker_seconds.get(kind, 0.0) + took * self.workers}
        return replace(self, until=time, seconds=seconds, worker_seconds=of_workers)


def _seconds(value: Any) -> float:
    return float(value) if is_number(value) and 0 < value <= MOST else 0.0


def rounded(ledger: Ledger) -> dict[str, float]:
    """Kind → seconds, as in a result."""
    return {kind: round(took, 2) for kind in KINDS if (took := ledger.seconds.get(kind, 0.0))}


def _sum(each: Iterable[Mapping[Kind, float]]) -> dict[Kind, float]:
    found: dict[Kind, float] = {}
    for seconds in each:
        for kind, took in seconds.items():
            found[kind] = found.get(kind, 0.0) + took
    return found


_STORED = TypeAdapter(Ledger)


def stored(ledger: Ledger) -> dict[str, Any]:
    """A field of a journal entry: the ledger before that entry."""
    return {"ledger": asdict(ledger)}


def of_entry(entry: Mapping[str, Any]) -> Ledger | None:
    """The ledger before an entry; None if the entry has none, or a damaged one."""
    try:
        return _STORED.validate_python(entry["ledger"])
    except (KeyError, ValidationError):
        return None
