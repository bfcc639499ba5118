"""Feed the journal to one tracker, in a thread of its own: in order, each report once."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from plugin_core.errors import FencedError, SpecError
from plugin_core.runs.directory import RunDir
from plugin_core.runs.journal import JournalReader, index_of
from plugin_core.runs.ledger import rounded
from plugin_core.runs.ledgers import ledger_of
from plugin_core.specs.json_values import is_number
from plugin_core.specs.results import StepResult
from plugin_core.specs.step_kinds import step_kind
from plugin_core.tracking.backend import Backend, Entry, numbers

#: Seconds between two reads of the journal; a tracker that failed is retried with backoff.
LOOK_S, RETRY_FIRST_S, RETRY_MAX_S = 1.0, 1.0, 30.0
#: Reports passed to a tracker at once.
BATCH = 500

logger = logging.getLogger(__name__)


def final_metrics(result: StepResult) -> dict[str, Any] | None:
    """The metrics of a step that reports nothing while it runs."""
    return None if step_kind(result.kind).reports else result.metrics


class Feed:
    """`tried`: the first try to begin is over; `begun`: the tracking run exists; `refused`: it never will."""

    def __init__(self, rundir: RunDir, backend: Backend):
        self.name: str = backend.config.type  # type: ignore[attr-defined]
        self.backend = backend
        self.tried, self.begun = threading.Event(), threading.Event()
        self.refused: SpecError | None = None
        self.error: Exception | None = None
        self._rundir = rundir
        self._reader = JournalReader(rundir)
        self._waiting: list[Entry] = []
        #: index and step of the last report logged, and index of the last one read
        self._index = self._step = self._read = 0
        self._by_metric = False
        self._ending: tuple[str, str] | None = None
        self._last: list[Entry] = []
        self._wake = threading.Event()
        self._over = threading.Event()
        self._left = False
        backend.moved = self._move
        self._move()

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True, name=f"tracking-{self.name}").start()

    def _run(self) -> None:
        wait = RETRY_FIRST_S
        while True:
            try:
                over = self._turn()
                self.error, wait = None, RETRY_FIRST_S
                if over:
                    break
                self._wake.wait(LOOK_S)
            except SpecError as exc:
                self.refused = self.error = exc
                break
            except FencedError as exc:
                self.error = exc  # the later attempt has its own feed
                break
            except Exception as exc:  # noqa: BLE001 - a tracker may raise anything, and must never end a training
                if self.error is None:
                    logger.warning("tracking: %s is unreachable; retrying: %s", self.name, exc)
                self.error = exc
                self.tried.set()
                if self._left:
                    break
                self._pause(wait)
                wait = min(2 * wait, RETRY_MAX_S)
        self.tried.set()
        self._over.set()

    def end(self, status: str, message: str, metrics: dict[str, Any] | None = None) -> None:
        if metrics is not None:
            self._last = [Entry(1, 1, time.time(), numbers(metrics))]
        self._ending = (status, message)
        self._move()
        self._wake.set()

    def _move(self) -> None:
        self._moved = time.monotonic()

    def leave(self) -> None:
        self._left = True
        self._wake.set()

    def wait(self, stall_s: float) -> None:
        """Wait until the feed is over, or made no progress for `stall_s` seconds."""
        while not self._over.wait(0.1):
            if time.monotonic() - self._moved > stall_s:
                self._left = True
                return

    @property
    def whole(self) -> bool:
        """Whether the tracker has everything."""
        return self._over.is_set() and self.error is None

    def warnings(self) -> list[str]:
        if self.refused is not None:
            return [self.refused.message]
        if self.whole:
            return []
        said = str(self.error or "").strip() or type(self.error).__name__
        reason = f" ({said.splitlines()[0][:200]})" if self.error else ""
        return [f"tracking.{self.name}: some reports are missing{reason}; `raytrain track {self._rundir.uri}` logs them"]

    def _turn(self) -> bool:
        """Log what is new; return True when there is nothing left to do."""
        if not self.begun.is_set():
            self._index = self.backend.begin()
            self.begun.set()
            self.tried.set()
        ending, left = self._ending, self._left  # read first, so that all reports up to then are logged
        while self._waiting or self._take_in():
            self.backend.log(self._waiting[:BATCH])
            del self._waiting[:BATCH]
            self._move()
        if ending is not None:
            if self._last and self._index < self._last[0].index:
                self.backend.log(self._last)
            elif self._index and self._rundir.is_outermost:
                self.backend.log([self._ledger()])
            self.backend.end(*ending)
            return True
        if left:
            self.backend.leave()
        return left

    def _take_in(self) -> bool:
        """Read on; return True if there is something to log. Reads at most a batch, even after a long outage."""
        for line in self._reader:
            entry = self._entry(line) if "report" in line else self._validation(line)
            if entry is not None:
                self._waiting.append(entry)
            if len(self._waiting) >= BATCH:
                break
        return bool(self._waiting)

    def _entry(self, line: dict[str, Any]) -> Entry | None:
        index = index_of(line)
        if index <= self._read:
            return None  # reported again by a restored worker
        self._read = index
        metric = self.backend.config.step_metric
        step = index
        if metric is not None and is_number(line["metrics"].get(metric)):
            self._by_metric = True
            step = max(int(line["metrics"][metric]), self._step)
        elif self._by_metric:
            step = self._step  # an index may be far beyond the metric, and steps never go back
        self._step = step
        if index <= self._index:
            return None  # the tracker has it
        self._index = index
        name = line.get("checkpoint")
        checkpoint = self._rundir.location.child(name).uri if name else None
        return Entry(index, step, line["time"], numbers(line["metrics"]), checkpoint)

    def _validation(self, line: dict[str, Any]) -> Entry | None:
        """A validation's metrics, at the step of the report before it: a tracker may require steps in order. They are
        logged with that report, or again; what the tracker had before this feed began is complete up to its last
        one."""
        if line.get("phase") != "validated" or not line["metrics"] or self._read < self._index:
            return None
        found = {**numbers(line["metrics"]), "validation/report": float(line["index"])}
        return Entry(self._index, self._step, line["time"], found)

    def _ledger(self) -> Entry:
        """Where the run's time went, at the step of its last report."""
        ledger = ledger_of(self._rundir)
        found = {f"ledger/{kind}_s": took for kind, took in rounded(ledger).items()}
        return Entry(self._index, self._step, ledger.until, {**found, "ledger/useful_share": ledger.share_of("useful")})

    def _pause(self, seconds: float) -> None:
        """Wait; only briefly once the run is ending."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self._left:
            if self._ending is not None:
                deadline = min(deadline, time.monotonic() + 1.0)
            time.sleep(0.1)
