"""Experiment tracking: one tracking run per run, across all its attempts.

Trackers are fed from the journal, by one thread per tracker in the driver, so no tracker slows or fails the training. An
unreachable tracker catches up later. What is missing at the end becomes a warning on the result, and
`raytrain track RUN_URI` logs it later.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from plugin_core.errors import InfrastructureError, RayTrainWorkflowsError, StepCancelledError, StepTimeoutError
from plugin_core.runs.directory import RunDir
from plugin_core.specs.extras import require
from plugin_core.specs.functions import import_function
from plugin_core.specs.tracking import Tracker
from plugin_core.tracking.backend import Backend
from plugin_core.tracking.feed import Feed, final_metrics
from plugin_core.tracking.subject import ORIGIN, Subject

if TYPE_CHECKING:
    from plugin_core.runs.context import StepContext
    from plugin_core.specs.results import StepResult

#: tracker (also its module here, and the extra that installs it) → the package it needs
PACKAGES = {"mlflow": "mlflow", "wandb": "wandb", "tensorboard": "tensorboard", "comet": "comet_ml"}
#: Seconds a training waits for its trackers to begin, so that the workers know the tracking run; and seconds its end waits
#: for a tracker that makes no progress: long enough for a few calls to a busy server, each of which a client abandons
#: after 10 s and repeats once.
BEGIN_S, STALL_S = 20.0, 60.0
#: Seconds a tracker gets to begin when nothing else waits for it: on a busy machine, just importing its client may take
#: half a minute.
PATIENT_S = 300.0
#: Seconds a tracker gets to record a cancel or a timeout.
KILLED_S = 3.0

logger = logging.getLogger(__name__)
_open: set[Feeds] = set()


def _away(feed: Feed) -> str:
    why = str(feed.error).splitlines()[0][:200] if str(feed.error or "") else "it has not answered yet"
    return f"tracking.{feed.name}: cannot be reached ({why})"


class Feeds:
    """The trackers of one run."""

    def __init__(self, feeds: list[Feed]):
        self._feeds = feeds

    def begin(self) -> None:
        """Start the trackers; return when each has begun or failed to. Raises SpecError if one rejects the spec,
        InfrastructureError if a required one cannot be reached."""
        for feed in self._feeds:
            feed.start()
        deadline = time.monotonic() + BEGIN_S
        for feed in self._feeds:
            feed.tried.wait(max(0.0, deadline - time.monotonic()))
            if feed.refused is not None:
                self.leave()
                raise feed.refused
            if not feed.begun.is_set() and feed.backend.config.required:
                self.leave()
                raise InfrastructureError(f"{_away(feed)}, but is required")

    def must_begin(self) -> None:
        """Wait until each tracker has begun. Raises InfrastructureError if one could not be reached."""
        deadline = time.monotonic() + PATIENT_S
        for feed in self._feeds:
            feed.tried.wait(max(0.0, deadline - time.monotonic()))
            if not feed.begun.is_set():
                raise InfrastructureError(_away(feed))

    def must_be_whole(self) -> None:
        """Raise InfrastructureError if a tracker is missing reports."""
        for feed in self._feeds:
            if not feed.whole:
                raise InfrastructureError("; ".join(feed.warnings()))

    @property
    def worker_environment(self) -> tuple[dict[str, str], dict[str, str]]:
        """Variables for rank 0, whose own tracker calls join the run, and for the other ranks, which must not."""
        first: dict[str, str] = {}
        others: dict[str, str] = {}
        for feed in self._feeds:
            if feed.begun.is_set():
                first |= feed.backend.worker_environment()
                others |= feed.backend.other_workers_environment()
        return first, others

    def end(
        self, status: str, message: str = "", timeout_s: float = STALL_S, metrics: dict[str, Any] | None = None
    ) -> None:
        """Log the rest and record how the run ended: "finished", "failed" or "killed". A tracker that makes no progress for
        `timeout_s` is abandoned. `metrics`: those of a step that reports nothing while it runs."""
        for feed in self._feeds:
            feed.end(status, message, metrics)
        for feed in self._feeds:
            feed.wait(timeout_s)

    def leave(self) -> None:
        """Stop without recording an end: another attempt continues."""
        for feed in self._feeds:
            feed.leave()
        for feed in self._feeds:
            feed.wait(KILLED_S)

    @property
    def links(self) -> dict[str, str]:
        return {feed.name: feed.backend.url for feed in self._feeds if feed.backend.url}

    @property
    def warnings(self) -> list[str]:
        return [warning for feed in self._feeds for warning in feed.warnings()]


@contextmanager
def tracked(context: StepContext) -> Iterator[Feeds]:
    """The trackers of a running step. A permanent failure ends the tracking run as failed; if another attempt will
    continue, it is left running."""
    from plugin_core.errors.classify import classify

    if not context.spec.tracking:
        yield Feeds([])
        return
    subject = Subject.of(context)
    feeds = Feeds([Feed(context.rundir, make_backend(config, subject)) for config in context.spec.tracking])
    _open.add(feeds)
    try:
        feeds.begin()
        yield feeds
    except Exception as exc:
        error = classify(exc)
        if error.retryable:
            feeds.leave()
        else:
            feeds.end("failed", error.message)
        raise
    finally:
        _open.discard(feeds)


def with_tracking(result: StepResult, feeds: Feeds) -> StepResult:
    """Add the links to the tracking runs, and warnings about what they miss, to the result."""
    feeds.end("finished", metrics=final_metrics(result))
    for warning in feeds.warnings:
        logger.warning("%s", warning)
    update = {"tracking": feeds.links, "warnings": [*result.warnings, *feeds.warnings]}
    return result.model_copy(update=update)


def stop_tracking(error: RayTrainWorkflowsError) -> None:
    """Just before this process exits: record a cancelled or timed-out run as killed."""
    if status_of(error.outcome) == "killed":
        end_trackers("killed", error.message)


def end_trackers(status: str, message: str = "") -> None:
    """Just before this process is ended from outside, in the middle of a step: log the rest, and record the end."""
    for feeds in list(_open):
        feeds.end(status, message, KILLED_S)
        for warning in feeds.warnings:
            logger.warning("%s", warning)


def status_of(outcome: str) -> str:
    """The tracker status, "killed" or "failed", of an attempt that ended with this outcome and no result."""
    return "killed" if outcome in (StepCancelledError.outcome, StepTimeoutError.outcome) else "failed"


def make_backend(config: Tracker, subject: Subject) -> Backend:
    """Create the tracker's backend. Raises SpecError if the tracker's package is missing here."""
    name: str = config.type  # type: ignore[attr-defined]
    if not config.backend:
        require("tracking", name, PACKAGES[name], extra=name)
    made = import_function("tracking", config.backend or f"plugin_core.tracking.{name}:BACKEND")
    backend: Backend = made(config, subject)
    return backend


def note_origin(rundir: RunDir) -> None:
    """Store which engine task the attempt belongs to (from the Ray job's metadata), for trackers and their replays."""
    config = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR") or "{}")
    origin = {name: value for name, value in config.get("metadata", {}).items() if name not in ("run", "name", "attempt")}
    if origin:
        rundir.step.child(*ORIGIN).write(json.dumps(origin).encode())
