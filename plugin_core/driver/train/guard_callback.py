"""Ends a training early from Ray Train's controller: on a fence, a user's error, or resources that never become free."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any

from plugin_core.clusters import env_files
from plugin_core.driver.resources import no_resources
from plugin_core.driver.train.judge import Judge
from plugin_core.errors import FencedError, StorageError
from plugin_core.ray_internals.controller import ControllerCallback, WorkerGroupCallback, state_name
from plugin_core.ray_internals.train_errors import UserExceptionWithTraceback
from plugin_core.runs import timings
from plugin_core.runs.fence import Fence
from plugin_core.specs.resources import in_words

#: Seconds to wait for more errors after some workers raised: a lost peer first shows as exceptions in its live peers.
GRACE_S = 3.0
_WAITING = frozenset({"initializing", "scheduling", "rescheduling", "restarting", "resizing"})

logger = logging.getLogger(__name__)


class GuardCallback(ControllerCallback, WorkerGroupCallback):
    """Ends the training by raising in the controller's hooks. Ray alone would retry a worker's exception `max_failures`
    times and wait for resources for ever.

    `watches_fence`: whether the controller has a process of its own, which must stop by itself while its driver is frozen.
    """

    def __init__(
        self,
        run_uri: str,
        attempt: int,
        scheduling_timeout_s: float | None,
        judge: Judge,
        *,
        watches_fence: bool = True,
    ):
        self._judge = judge
        self._watches_fence = watches_fence
        self._run_uri = run_uri
        self._attempt = attempt
        self._scheduling_timeout_s = scheduling_timeout_s
        self._worker_group: Any = None
        self._waiting_since: float | None = time.monotonic()
        self._wanted = ""
        self._polling_again = False

    # ---- the fence

    def after_controller_start(self, train_run_context: Any) -> None:
        if self._watches_fence:
            threading.Thread(target=self._watch_fence, daemon=True, name="fence").start()

    def _watch_fence(self) -> None:
        fence = Fence(self._run_uri, self._attempt)
        while True:
            try:
                fence.check()
            except FencedError as exc:
                logger.warning("%s", exc.message)
                env_files.remove()  # os._exit runs no exit handlers
                os._exit(exc.exit_code)
            except StorageError as exc:
                logger.warning("%s; training continues", exc.message)
            time.sleep(timings.FENCE_EVERY_S)

    # ---- errors of workers

    def after_worker_group_start(self, worker_group: Any) -> None:
        self._worker_group = worker_group

    def before_worker_group_shutdown(self, worker_group: Any) -> None:
        self._worker_group = None

    def after_worker_group_poll_status(self, worker_group_status: Any) -> None:
        """If there are only user exceptions, keep polling for a while: a lost peer shows late, and takes precedence."""
        statuses = worker_group_status.worker_statuses
        self._judge.note_kills(statuses)
        if self._polling_again or self._worker_group is None or not worker_group_status.errors:
            return
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline and self._only_users_errors(statuses):
            self._polling_again = True
            try:
                later = self._worker_group.poll_status(timeout=0.5)
            finally:
                self._polling_again = False
            for rank, status in later.worker_statuses.items():
                if status.error is not None and statuses[rank].error is None:
                    statuses[rank] = status

    @staticmethod
    def _only_users_errors(statuses: dict[int, Any]) -> bool:
        """Whether some ranks failed with user exceptions while others are still running and may fail differently."""
        errors = [status.error for status in statuses.values() if status.error is not None]
        still = any(status.running and status.error is None for status in statuses.values())
        return still and all(isinstance(error, UserExceptionWithTraceback) for error in errors)

    def after_controller_state_update(self, previous_state: Any, current_state: Any) -> None:
        state = state_name(current_state)
        if state == "restarting":
            verdict = self._judge.verdict(current_state.training_failed_error)
            if verdict.error is not None:
                raise verdict.error
        self._watch_scheduling(state, current_state)

    # ---- resources

    def _watch_scheduling(self, state: str, current_state: Any) -> None:
        if state not in _WAITING:
            self._waiting_since = None
            return
        if self._waiting_since is None:
            self._waiting_since = time.monotonic()
        decision = getattr(current_state, "scaling_decision", None)
        if decision is not None:
            self._wanted = f"{decision.num_workers} workers of {in_words(decision.resources_per_worker)} each"
        limit = self._scheduling_timeout_s
        # "scheduling" is the start itself: it succeeds, or turns into "rescheduling" after its own timeout
        if limit is None or state == "scheduling" or time.monotonic() - self._waiting_since < limit:
            return
        raise no_resources(limit, self._wanted)
