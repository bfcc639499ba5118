"""Detects a stalled training, from Ray Train's controller."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from plugin_core.driver.train.rhythm import Clock, Rhythm
from plugin_core.driver.train.stacks import ALL_S, dump, odd_ranks
from plugin_core.errors import HangError, StorageError
from plugin_core.ray_internals.controller import ControllerCallback, ReportCallback, WorkerGroupCallback
from plugin_core.ray_internals.polled_worker import ask_s
from plugin_core.ray_internals.stacks import of_workers
from plugin_core.runs.directory import RunDir
from plugin_core.specs.hang import HangDetection

logger = logging.getLogger(__name__)

FOLDER = "hangs"
#: With `warn`, the stacks are taken again once a stall has lasted this many times as long as when they were taken last.
AGAIN = 2.0
#: Two polls may lie this many times as far apart as a poll without news takes.
APART = 2.0


class HangCallback(ReportCallback, ControllerCallback, WorkerGroupCallback):
    """`warn`: see `JournalCallback.warn`. A hang is reported once, and again if it lasts. With `restart`, the odd rank
    fails, and Ray Train restarts all ranks from the checkpoint."""

    def __init__(self, rundir: RunDir, attempt: int, config: HangDetection, warn: Callable[..., None]):
        self._rundir = rundir
        self._attempt = attempt
        self._config = config
        self._warn = warn
        self._clock = Clock()
        self._apart_s = APART * ask_s(1)
        self._rhythm = Rhythm(config, self._now())
        self._worker_group: Any = None
        self._told = 0
        self._next: float | None = None

    def after_worker_group_start(self, worker_group: Any) -> None:
        self._worker_group = worker_group
        self._apart_s = APART * ask_s(len(worker_group))

    def after_worker_group_training_start(self, worker_group: Any) -> None:
        self._rhythm.begin(self._now())
        self._next = None

    def before_worker_group_shutdown(self, worker_group: Any) -> None:
        self._worker_group = None

    def after_report(self, training_report: Any, metrics: list[dict[str, Any]]) -> None:
        self._rhythm.report(self._now())
        self._next = None

    def after_worker_group_poll_status(self, worker_group_status: Any) -> None:
        statuses = worker_group_status.worker_statuses
        if self._worker_group is None or worker_group_status.errors or worker_group_status.finished:
            return
        now = self._now()
        if any(getattr(status, "moves", False) for status in statuses.values()):
            self._rhythm.progress(now)
            self._next = None
        quiet_s, bound_s = self._rhythm.quiet_s(now), self._next or self._rhythm.bound_s
        if quiet_s < bound_s:
            return
        self._next = AGAIN * quiet_s
        why, odd = self._tell(quiet_s)
        if self._config.action == "restart":
            for rank in odd or [min(statuses)]:
                statuses[rank].error = HangError(f"hang: {why}")

    def _now(self) -> float:
        return self._clock.read(self._apart_s)

    def _tell(self, quiet_s: float) -> tuple[str, list[int]]:
        stacks = of_workers(self._worker_group, dump, ALL_S)
        odd, places = odd_ranks(stacks)
        why = f"no report for {quiet_s:.0f} s ({self._rhythm.learned}): {places}"
        self._told += 1
        kept = self._rundir.step.child(FOLDER, f"{self._attempt:03}-{self._told:03}.txt")
        try:
            kept.write("\n\n".join(f"rank {rank}\n{text}" for rank, text in sorted(stacks.items())).encode())
            why += f"; stacks: {kept.uri}"
        except StorageError as exc:
            logger.warning("the stacks are not kept: %s", exc.message)
        logger.warning("the training hangs: %s", why)
        # the ledger counts that time as lost
        ends = {"quiet_s": round(quiet_s, 1)} if self._config.action == "restart" else {}
        self._warn(f"the training hangs: {why}", phase="hanging", **ends)
        return why, odd
