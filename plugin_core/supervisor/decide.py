"""What to do next, as a pure function of what was observed. The loop in `supervisor` only carries it out.

Two rules decide everything:

* *Unreachable is never dead*, and a job that Ray calls FAILED while its heartbeat moves is not dead either (Ray marks live
  jobs FAILED on a hiccup of its own).
* The next attempt starts only when the last one is **known to be over**: our driver recorded its end; or its job is
  terminal, its heartbeat silent and none of its actors alive; or the cluster that ran it is gone for good, or was
  unreachable for `unreachable_timeout_s`, and its heartbeat is silent (then the new receipt fences it).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from plugin_core.errors import EXIT_NOT_HANDED_OVER, EXIT_NOT_SHARED, TERMINATED, SpecError
from plugin_core.runs.directory import AttemptEnd


class Job(Enum):
    """What the cluster says about the attempt's job. `OTHER_INCARNATION`: the same cluster has another head now, and
    the one that ran the attempt is gone."""

    UNASKED = "unasked"
    ABSENT = "absent"
    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    UNREACHABLE = "unreachable"
    OTHER_INCARNATION = "other incarnation"


LIVE = frozenset({Job.PENDING, Job.RUNNING})
TERMINAL = frozenset({Job.SUCCEEDED, Job.FAILED, Job.STOPPED})
#: How a job exits whose driver refused its storage, or whose shell found no Python: the next one would do the same.
NEVER_BEGAN = frozenset({SpecError.exit_code, 126, 127})


@dataclass(frozen=True)
class Observed:
    """One look at a run.

    `ours`: the attempt was started, or seen alive, by this call (so its end is ours to judge). `cancel_wanted`: the
    whole run was cancelled while this call followed it; `attempt_unwanted`: this attempt was cancelled, by this call or an
    earlier one. `superseded`: the attempt was begun by another call, and after the cancel. `actors_alive`: actors of a
    job that is over still live. `job_message`: what Ray says of the job, or why it could not be asked.
    """

    has_result: bool = False
    attempt: int = 0
    ours: bool = False
    end: AttemptEnd | None = None
    job: Job = Job.UNASKED
    job_message: str = ""
    job_error_type: str = ""
    job_exit_code: int | None = None
    actors_alive: bool = False
    heartbeat_silent: bool = False
    cancel_wanted: bool = False
    attempt_unwanted: bool = False
    superseded: bool = False
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
    if seen.attempt == 0:
        if seen.overdue:
            return Action(Do.FAIL, seen.overdue, "timeout")
        return Action(Do.SUBMIT_NEXT, "nothing has run yet")
    if seen.end is not None:
        return _ended(seen, seen.end)
    if seen.job in LIVE:
        return _live(seen)
    if seen.job in TERMINAL:
        return _terminal_without_end(seen)
    if seen.job is Job.ABSENT:
        if seen.overdue:
            return Action(Do.FAIL, seen.overdue, "timeout")
        if seen.attempt_unwanted:
            return Action(Do.SUBMIT_NEXT, "an earlier call cancelled its attempt before the submit; going on with the run")
        # the receipt's writer died before its submit, or is about to make it: the same id cannot become two jobs
        return Action(Do.SUBMIT_SAME, "the receipt has no job on this cluster yet")
    return _out_of_sight(seen)


def _cancelling(seen: Observed) -> Action:
    if seen.superseded:
        return Action(Do.FAIL, "the run was cancelled; a later call began it again", "cancelled")
    over = seen.attempt == 0 or seen.job is Job.ABSENT or (seen.end is not None and seen.job not in LIVE)
    if seen.actors_alive:
        return Action(Do.WAIT, "cancel is wanted; the job is over, its last processes are about to end")
    if over or seen.job in TERMINAL:
        return Action(Do.FAIL, "the run was cancelled", "cancelled")
    if seen.job in LIVE:
        return Action(Do.STOP, "cancel is wanted")
    if seen.heartbeat_silent:
        return Action(
            Do.FAIL, "the run was cancelled; its cluster cannot be asked and its heartbeat is silent", "cancelled"
        )
    return Action(Do.WAIT, "cancel is wanted; the driver obeys the intent, the cluster cannot be asked")


def _live(seen: Observed) -> Action:
    if seen.overdue:
        return Action(Do.STOP, seen.overdue)
    if seen.attempt_unwanted:
        return Action(Do.STOP, "this attempt was cancelled")
    return Action(Do.WAIT, f"the job is {seen.job.value}")


def _ended(seen: Observed, end: AttemptEnd) -> Action:
    if seen.job in LIVE and seen.heartbeat_silent:
        return Action(Do.STOP, "the attempt recorded its end, but its job does not end")
    if seen.job in LIVE or seen.actors_alive:
        return Action(Do.WAIT, "the attempt recorded its end and its job is about to be over")
    if end.outcome == "succeeded" and not seen.heartbeat_silent:
        # a file system of several hosts may show the end before the result, which was written before it
        return Action(Do.WAIT, "the attempt succeeded; its result is not to be seen yet")
    if not seen.ours or seen.attempt_unwanted:
        if seen.overdue:
            return Action(Do.FAIL, seen.overdue, "timeout")
        return Action(Do.SUBMIT_NEXT, f"an earlier call's attempt ended ({end.outcome}); going on with the run")
    if end.outcome == TERMINATED and seen.overdue:
        return Action(Do.FAIL, seen.overdue, "timeout")
    if end.outcome == TERMINATED and seen.job is Job.STOPPED:
        return Action(Do.FAIL, "the job was stopped from outside", "cancelled")
    if end.outcome in ("infrastructure", TERMINATED):
        return _lost(seen, end.message, end.details)
    if end.outcome == "succeeded":
        return _lost(seen, "it succeeded, but its result is gone from storage")
    return Action(Do.FAIL, end.message, end.outcome, end.details)


def _terminal_without_end(seen: Observed) -> Action:
    if seen.job_exit_code == EXIT_NOT_SHARED:
        why = (
            "run_config.storage_path: the driver on the cluster finds no receipt there, so this path is not shared with"
            " the cluster; expected storage that both sides see (s3://, or a shared file system)"
        )
        return Action(Do.FAIL, why, "spec_error")
    if seen.job_exit_code in NEVER_BEGAN and seen.ours:
        return Action(Do.FAIL, f"the driver on the cluster could not begin: {seen.job_message[-500:]}", "spec_error")
    if seen.job_error_type == "RUNTIME_ENV_SETUP_FAILURE":
        return Action(Do.FAIL, f"runtime_env: the cluster cannot set it up: {seen.job_message[-500:]}", "spec_error")
    never_began = seen.job_exit_code == EXIT_NOT_HANDED_OVER
    if not seen.heartbeat_silent and not never_began:
        return Action(Do.WAIT, f"Ray says {seen.job.value}, but the heartbeat may still move")
    if seen.actors_alive:
        return Action(Do.WAIT, f"Ray says {seen.job.value}, but actors of the job still live")
    if seen.overdue:
        return Action(Do.FAIL, seen.overdue, "timeout")
    if not seen.ours or seen.attempt_unwanted:
        return Action(Do.SUBMIT_NEXT, "an earlier call's attempt is over without a word; going on with the run")
    if seen.job is Job.STOPPED:
        return Action(Do.FAIL, "the job was stopped from outside", "cancelled")
    if never_began:
        return _lost(
            seen, "the job started so late that Ray had deleted what was handed over to it (the cluster's env_vars)"
        )
    return _lost(seen, f"the job is {seen.job.value} without having recorded an end: {seen.job_message[-300:]}")


def _out_of_sight(seen: Observed) -> Action:
    """The job can be neither seen nor stopped; its driver obeys the deadlines and the intent by itself."""
    gone = seen.job is Job.OTHER_INCARNATION
    unasked = f"its cluster cannot be asked ({seen.job_message})" if seen.job_message else "its cluster cannot be asked"
    if not seen.heartbeat_silent:
        where = f"its cluster is gone ({seen.job_message or 'another head answers in its place'})" if gone else unasked
        return Action(Do.WAIT, f"{where}, and the heartbeat may still move")
    if seen.overdue:
        return Action(Do.FAIL, seen.overdue, "timeout")
    if not gone and not seen.gave_up_on_cluster:
        return Action(Do.WAIT, f"{unasked}, which does not mean that the job is dead")
    why = "the cluster that ran it is gone" if gone else f"{unasked}, and limits.unreachable_timeout_s is over"
    if seen.attempt_unwanted:
        return Action(Do.SUBMIT_NEXT, f"an earlier call cancelled its attempt, and {why}; going on with the run")
    return _lost(seen, why)


def _lost(seen: Observed, why: str, details: str = "") -> Action:
    if seen.overdue:
        return Action(Do.FAIL, seen.overdue, "timeout")
    if seen.attempts_of_this_call < seen.max_attempts:
        return Action(Do.SUBMIT_NEXT, f"attempt {seen.attempt} was lost: {why}")
    spent = f"after {seen.attempts_of_this_call} attempts (limits.max_attempts): {why}"
    return Action(Do.FAIL, spent, "infrastructure", details)
