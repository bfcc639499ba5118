"""The driver's watchdog thread: writes the heartbeat, and ends the process when the attempt must stop."""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable

from plugin_core.errors import (
    TERMINATED,
    InfrastructureError,
    RayTrainWorkflowsError,
    StepCancelledError,
    StepError,
    StepTimeoutError,
    StorageError,
)
from plugin_core.runs import timings
from plugin_core.runs.directory import Heartbeat, Phase, RunDir
from plugin_core.runs.fence import Fence
from plugin_core.specs import Limits

#: The most phases of an attempt that are recorded: few are expected.
PHASES = 200

logger = logging.getLogger("raytrain.driver")


class Terminated(StepError):
    """This process received a SIGTERM; the supervisor decides what it means."""

    outcome = TERMINATED


class Watch:
    """The thread that writes the heartbeat and ends the process when the run directory or a signal says so.

    `signals`: a file descriptor from which a byte can be read once a SIGTERM has come (see `signal_pipe`).
    """

    def __init__(
        self,
        rundir: RunDir,
        attempt: int,
        limits: Limits,
        stop: Callable[[RayTrainWorkflowsError], None],
        signals: int | None = None,
    ):
        self._rundir = rundir
        self._attempt = attempt
        self._limits = limits
        self._stop = stop
        self._fence = Fence(rundir.uri, attempt)
        self._started = time.monotonic()
        self._spent_before = spent_before_s(rundir, attempt)
        self._interest = ("", self._started)
        self._counter = 0
        self._wake, self._closing = os.pipe()
        self._watched = [self._wake] if signals is None else [self._wake, signals]
        self.phase = "starting"
        self._phases: list[Phase] = []
        self._phases_shown = 0
        self.links: dict[str, str] = {}
        self._links_shown: dict[str, str] = {}
        self._thread = threading.Thread(target=self._loop, daemon=True, name="watch")

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._closing)
        self._thread.join(timeout=10)
        if not self._thread.is_alive():
            os.close(self._wake)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def enter(self, phase: str) -> None:
        """Begin a phase. People see the first `PHASES` of an attempt in its log, the current one in its status."""
        if phase != self.phase and len(self._phases) < PHASES:
            self._phases.append(Phase(time.time(), phase))
        self.phase = phase

    def mark(self, what: str, since: float | None = None) -> None:
        """Record for the timeline what begins now, or began at `since` (seconds since the epoch)."""
        self._phases.append(Phase(time.time() if since is None else since, what, shown=False))

    @property
    def phases(self) -> list[Phase]:
        return list(self._phases)

    def look(self) -> None:
        """Raise if this attempt must stop."""
        attempts = self._rundir.attempts()  # one request
        self._fence.judge(attempts.latest)
        if attempts.intent.cancel_through >= self._attempt:
            raise StepCancelledError("the run was cancelled")
        limit = self._limits.timeout_s
        if limit is not None and self._spent_before + self.elapsed_s > limit:
            raise StepTimeoutError(f"the step took longer than limits.timeout_s ({limit:g} s)")
        orphan = self._limits.orphan_timeout_s
        if orphan is not None and self._alone_for_s(attempts.interest) > orphan:
            raise InfrastructureError(f"no orchestrator followed the run for limits.orphan_timeout_s ({orphan:g} s)")

    def _alone_for_s(self, sign: str) -> float:
        if sign != self._interest[0]:
            self._interest = (sign, time.monotonic())
        return time.monotonic() - self._interest[1]

    def _loop(self) -> None:
        while True:
            ready, _, _ = select.select(self._watched, [], [], timings.BEAT_S if self._counter else 0)
            if self._wake in ready:
                return
            try:
                self.look()
                if ready:
                    raise Terminated("the driver was told to stop (SIGTERM)")
                self._counter += 1
                self._rundir.beat(self._attempt, Heartbeat(self._counter, self.phase, round(self.elapsed_s, 1)))
                if len(phases := list(self._phases)) != self._phases_shown:
                    self._rundir.show_phases(self._attempt, phases)
                    self._phases_shown = len(phases)
                if (links := self.links) != self._links_shown:
                    self._rundir.show_links(self._attempt, links)
                    self._links_shown = links
            except StorageError as exc:
                if ready:
                    self._stop(Terminated(f"the driver was told to stop (SIGTERM); {exc.message}"))
                    return
                logger.warning("%s; training continues", exc.message)
            except StepError as exc:
                self._stop(exc)
                return


def spent_before_s(rundir: RunDir, attempt: int) -> float:
    """The seconds that the attempts before this one took: each as recorded at its end, or up to its last heartbeat if it
    was killed or cancelled."""
    spent = 0.0
    for before in range(1, attempt):
        records = (rundir.end(before), rundir.heartbeat(before))
        spent += max((record.elapsed_s for record in records if record is not None), default=0.0)
    return spent


def signal_pipe() -> int:
    """Return a descriptor that becomes readable on SIGTERM at once, whatever the main thread is doing.

    Python runs signal handlers only in the main thread, between bytecodes, but the interpreter's C handler writes the
    signal number to this pipe immediately. Ray later installs its own SIGTERM handler, which does not affect this.
    """
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    return readable
