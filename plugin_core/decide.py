"""What to do next, as a pure function of what was observed. The loop in `supervisor` only carries it out.

Two rules decide everything:

* *Unreachable is never dead*, and a job that Ray calls FAILED while its heartbeat moves is not dead either (Ray marks live
  jobs FAILED on a hiccup of its own).
* The next attempt starts only when the last one is **known to be over**: our driver recorded its end; or its job is
  terminal and its heartbeat silent; or the cluster that ran it is gone for good and its heartbeat is silent.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from plugin_core.errors import EXIT_NOT_SHARED
from plugin_core.rundir import AttemptEnd


class Job(Enum):
    """What the cluster says about the attempt's job. `OTHER_INCARNATION`: the head at that address is another one."""

    UNASKED = "unasked"
    ABSENT = "absent"
    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    UNREACHABLE = "unreachable"
    OTHER_INCARNATION = "other incarnation"


TERMINAL = frozenset({Job.SUCCEEDED, Job.FAILED, Job.STOPPED})


@dataclass(frozen=True)
class Observed:
    """One look at a run. `ours`: the attempt was started, or seen alive, by this call (so its end is ours to judge)."""

    has_result: bool = False
    attempt: int = 0
    ours: bool = False
    end: AttemptEnd | None = None
    job: Job = Job.UNASKED
    job_message: str = ""
    job_error_type: str = ""
    job_exit_code: int | None = None
    heartbeat_silent: bool = False
    cancel_wanted: bool = False
    attempts_of_this_call: int = 0
    max_attempts: int = 3
    overdue: str = ""
    gave_up_on_cluster: bool = False


class Do(Enum):
    RETURN = "return"
    WAIT = "wait"
    SUBMIT_NEXT = "submit the next attempt"
    SUBMIT_SAME = "submit the receipt's job"
    STOP = "stop"
    FAIL = "fail"


@dataclass(frozen=True)
class Action:
    do: Do
    why: str
    outcome: str = ""
    details: str = ""


def decide(seen: Observed) -> Action:
    """The next action. Total: every observation has exactly one answer."""
    if seen.has_result:
        return Action(Do.RETURN, "the run has a result")
    if seen.cancel_wanted:
        return _cancelling(seen)
    if seen.overdue:
        return _overdue(seen)
    if seen.attempt == 0:
        return Action(Do.SUBMIT_NEXT, "nothing has run yet")
    if seen.end is not None:
        return _ended(seen, seen.end)
    if seen.job is Job.ABSENT:
        # the receipt's writer died before its submit, or is about to make it: the same id cannot become two jobs
        return Action(Do.SUBMIT_SAME, "the receipt has no job on this cluster yet")
    if seen.job in TERMINAL:
        return _terminal_without_end(seen)
    if seen.job is Job.OTHER_INCARNATION:
        if not seen.heartbeat_silent:
            return Action(Do.WAIT, "another head answers at that address, and the heartbeat may still move")
        return _lost(seen, "the cluster that ran it is gone")
    if seen.job is Job.UNREACHABLE and seen.gave_up_on_cluster and seen.heartbeat_silent:
        return _lost(seen, "the cluster was unreachable for too long")
    return Action(Do.WAIT, f"the job is {seen.job.value}")


def _cancelling(seen: Observed) -> Action:
    over = seen.attempt == 0 or (seen.end is not None and seen.job not in (Job.PENDING, Job.RUNNING))
    if over or seen.job in TERMINAL or seen.job is Job.ABSENT:
        return Action(Do.FAIL, "the run was cancelled", "cancelled")
    if seen.job in (Job.PENDING, Job.RUNNING):
        return Action(Do.STOP, "cancel is wanted")
    if seen.job is Job.OTHER_INCARNATION and seen.heartbeat_silent:
        return Action(Do.FAIL, "the run was cancelled", "cancelled")
    return Action(Do.WAIT, "cancel is wanted; the driver obeys the intent, the cluster cannot be asked")


def _overdue(seen: Observed) -> Action:
    if seen.job in (Job.PENDING, Job.RUNNING) and seen.end is None:
        return Action(Do.STOP, seen.overdue)
    return Action(Do.FAIL, seen.overdue, "timeout")


def _ended(seen: Observed, end: AttemptEnd) -> Action:
    if seen.job in (Job.PENDING, Job.RUNNING):
        return Action(Do.WAIT, "the attempt recorded its end and its job is about to be over")
    if not seen.ours:
        return Action(Do.SUBMIT_NEXT, f"an earlier call's attempt ended ({end.outcome}); going on with the run")
    if end.outcome == "infrastructure":
        return _lost(seen, end.message, end.details)
    if end.outcome == "succeeded":
        return Action(Do.FAIL, "the attempt succeeded, but its result is gone from storage", "infrastructure")
    return Action(Do.FAIL, end.message, end.outcome, end.details)


def _terminal_without_end(seen: Observed) -> Action:
    if seen.job_exit_code == EXIT_NOT_SHARED:
        why = (
            "run_config.storage_path: the driver on the cluster finds no receipt there, so this path is not shared with"
            " the cluster; accepted is storage that both sides see (s3://, or a shared file system)"
        )
        return Action(Do.FAIL, why, "spec_error")
    if not seen.heartbeat_silent:
        return Action(Do.WAIT, f"Ray says {seen.job.value}, but the heartbeat may still move")
    if seen.job is Job.STOPPED and seen.ours:
        return Action(Do.FAIL, "the job was stopped from outside", "cancelled")
    if seen.job_error_type == "RUNTIME_ENV_SETUP_FAILURE":
        return Action(Do.FAIL, f"runtime_env: the cluster cannot set it up: {seen.job_message[-500:]}", "spec_error")
    if not seen.ours:
        return Action(Do.SUBMIT_NEXT, "an earlier call's attempt is over without a word; going on with the run")
    return _lost(seen, f"the job is {seen.job.value} without having recorded an end: {seen.job_message[-300:]}")


def _lost(seen: Observed, why: str, details: str = "") -> Action:
    if seen.attempts_of_this_call < seen.max_attempts:
        return Action(Do.SUBMIT_NEXT, f"attempt {seen.attempt} was lost: {why}")
    spent = f"after {seen.attempts_of_this_call} attempts (limits.max_attempts): {why}"
    return Action(Do.FAIL, spent, "infrastructure", details)
