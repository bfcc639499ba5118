"""Decides what to do next, as a pure function of what was observed. The loop in `supervisor` carries it out.

Two rules:

* *Unreachable does not mean dead.* Nor does FAILED while the heartbeat still moves: Ray marks live jobs FAILED on
  transient problems of its own.
* The next attempt starts only once the last one is **known to be over**: our driver recorded its end; or its job is
  terminal, all its actors are dead, and its driver has an exit code or its heartbeat is silent; or its cluster is gone for
  good, and its processes were ended or its heartbeat is silent; or the cluster has been unreachable for
  `unreachable_timeout_s` and the heartbeat is silent (then the new receipt fences it).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from plugin_core.errors import (
    EXIT_NOT_HANDED_OVER,
    EXIT_NOT_SHARED,
    NO_RESOURCES,
    TERMINATED,
    GaveUpError,
    RestartError,
    SpecError,
)
from plugin_core.runs.directory import AttemptEnd
from plugin_core.specs.failure_policy import FailurePolicy


class Job(Enum):
    """The attempt's job according to the cluster. `OTHER_INCARNATION`: the cluster has a new head; the head that ran the
    attempt is gone."""

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
OUT_OF_SIGHT = frozenset({Job.UNREACHABLE, Job.OTHER_INCARNATION})
#: Exit codes of a driver that rejected its storage or a shell that found no Python: another attempt would fail the same.
NEVER_BEGAN = frozenset({SpecError.exit_code, 126, 127})
#: Ray's error type of a job that never got a driver.
SETUP_FAILED = "RUNTIME_ENV_SETUP_FAILURE"

#: What Python says about `-m plugin_core.driver` if our package is not installed.
NOT_INSTALLED = "Error while finding module specification for 'plugin_core.driver'"

#: The cause of an attempt's end that nobody could record.
LOST = "infrastructure"


@dataclass(frozen=True)
class Observed:
    """One observation of a run.

    `ours`: this call started the attempt or saw it alive, so its end is ours to judge. `cancel_wanted`: the whole run was
    cancelled while this call followed it. `attempt_unwanted`: this attempt was cancelled, by this call or an earlier one.
    `superseded`: another call started the attempt after the cancel. `driver_ended`: its driver's process is known to have
    ended. `actors_alive`: the job has ended but some of its actors are alive. `job_message`: Ray's message about the job,
    or why Ray could not be queried. `restarts`: how many attempts of this call ended because the `policy` restarts them,
    or for lack of resources. `elsewhere`: the run has another cluster to move on to.
    """

    has_result: bool = False
    attempt: int = 0
    ours: bool = False
    end: AttemptEnd | None = None
    job: Job = Job.UNASKED
    job_message: str = ""
    job_error_type: str = ""
    job_exit_code: int | None = None
    driver_ended: bool = False
    actors_alive: bool = False
    heartbeat_silent: bool = False
    cancel_wanted: bool = False
    attempt_unwanted: bool = False
    superseded: bool = False
    attempts_of_this_call: int = 0
    restarts: int = 0
    max_attempts: int = 3
    policy: FailurePolicy | None = None
    overdue: str = ""
    gave_up_on_cluster: bool = False
    elsewhere: bool = False


class Do(Enum):
    """What to do next. The value starts the log line; `newest` is the latest attempt so far, `next` the one after it."""

    RETURN = "finished"
    WAIT = "waiting"
    SUBMIT_NEXT = "submitting attempt {next}"
    SUBMIT_SAME = "submitting attempt {newest}"
    STOP = "stopping"
    FAIL = "failed"


@dataclass(frozen=True)
class Action:
    """`moves_on`: the next attempt begins on the next of the run's clusters."""

    do: Do
    why: str
    outcome: str = ""
    details: str = ""
    cause: str = ""
    moves_on: bool = False


def decide(seen: Observed) -> Action:
    """Return the next action. Total: every observation has exactly one."""
    action = _decide(seen)
    if action.do is Do.SUBMIT_NEXT and seen.elsewhere and seen.job in OUT_OF_SIGHT:
        return replace(action, moves_on=True)
    return action


def is_over(seen: Observed) -> bool:
    """Whether the attempt is known to be over, although it may not have said so. An unreachable cluster proves nothing."""
    if seen.actors_alive:
        return False
    if seen.job is Job.FAILED and seen.job_error_type == SETUP_FAILED:
        return True
    return seen.job in (*TERMINAL, Job.OTHER_INCARNATION) and (seen.driver_ended or seen.heartbeat_silent)


def _decide(seen: Observed) -> Action:
    if seen.has_result:
        return Action(Do.RETURN, "the run has a result")
    if seen.cancel_wanted:
        return _cancelling(seen)
    if seen.attempt == 0:
        if seen.overdue:
            return Action(Do.FAIL, seen.overdue, "timeout")
        return Action(Do.SUBMIT_NEXT, "")
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
            return Action(Do.SUBMIT_NEXT, "an earlier call cancelled its attempt before submitting it; continuing the run")
        # the receipt's writer died before submitting, or is about to submit: the same id cannot become two jobs
        return Action(Do.SUBMIT_SAME, "the cluster does not have its job yet")
    return _out_of_sight(seen)


def _cancelling(seen: Observed) -> Action:
    if seen.superseded:
        return Action(Do.FAIL, "the run was cancelled; a later call restarted it", "cancelled")
    over = seen.attempt == 0 or seen.job is Job.ABSENT or (seen.end is not None and seen.job not in LIVE)
    if seen.actors_alive:
        return Action(Do.WAIT, "cancel requested; the job has ended, its last processes are shutting down")
    if over or seen.job in TERMINAL:
        return Action(Do.FAIL, "the run was cancelled", "cancelled")
    if seen.job in LIVE:
        return Action(Do.STOP, "cancel requested")
    if seen.heartbeat_silent:
        return Action(
            Do.FAIL, "the run was cancelled; its cluster cannot be queried and its heartbeat is silent", "cancelled"
        )
    return Action(Do.WAIT, "cancel requested; the cluster cannot be queried, but the job reads the cancel from storage")


def _live(seen: Observed) -> Action:
    if seen.overdue:
        return Action(Do.STOP, seen.overdue)
    if seen.attempt_unwanted:
        return Action(Do.STOP, "this attempt was cancelled")
    return Action(Do.WAIT, f"the job is {seen.job.value}")


def _ended(seen: Observed, end: AttemptEnd) -> Action:
    if seen.job in LIVE and seen.heartbeat_silent:
        return Action(Do.STOP, "the attempt has ended, but its job keeps running")
    if seen.job in LIVE or seen.actors_alive:
        return Action(Do.WAIT, "the attempt has ended; its job is shutting down")
    if end.outcome == "succeeded" and not seen.heartbeat_silent:
        # a shared file system may show the end before the result, although the result was written first
        return Action(Do.WAIT, "the attempt succeeded; its result is not visible yet")
    if end.cause == NO_RESOURCES and seen.elsewhere and not seen.overdue:
        return Action(Do.SUBMIT_NEXT, end.message, moves_on=True)
    if not seen.ours or seen.attempt_unwanted:
        if seen.overdue:
            return Action(Do.FAIL, seen.overdue, "timeout")
        return Action(Do.SUBMIT_NEXT, f"the attempt of an earlier call ended ({end.outcome}); continuing the run")
    if end.outcome in (TERMINATED, RestartError.outcome) and seen.overdue:
        return Action(Do.FAIL, seen.overdue, "timeout")
    if end.outcome == RestartError.outcome:
        return Action(Do.SUBMIT_NEXT, end.message)
    if end.outcome == TERMINATED and seen.job is Job.STOPPED:
        return Action(Do.FAIL, "the job was stopped from outside", "cancelled")
    if end.outcome in ("infrastructure", TERMINATED):
        return _lost(seen, end.message, end.details, end.cause or LOST)
    if end.outcome == "succeeded":
        return _lost(seen, "it succeeded, but its result is gone from storage")
    return Action(Do.FAIL, end.message, end.outcome, end.details, end.cause)


def _terminal_without_end(seen: Observed) -> Action:
    if seen.job_exit_code == EXIT_NOT_SHARED and seen.ours:
        why = (
            "run_config.storage_path: the job on the cluster does not find the run there, so this path is not shared with"
            " the cluster; expected storage that both sides can access (s3://, or a shared file system)"
        )
        return Action(Do.FAIL, why, "spec_error")
    if seen.job_exit_code in NEVER_BEGAN and seen.ours:
        return Action(Do.FAIL, f"the driver on the cluster could not start: {seen.job_message[-500:]}", "spec_error")
    if NOT_INSTALLED in seen.job_message and seen.ours:
        why = (
            "cluster: ray-train-workflows is not installed for its Python; install it there, or give the cluster"
            " ship_package=True"
        )
        return Action(Do.FAIL, why, "spec_error")
    if seen.job_error_type == SETUP_FAILED and seen.ours:
        return Action(Do.FAIL, f"runtime_env: the cluster failed to set it up: {seen.job_message[-500:]}", "spec_error")
    never_began = seen.job_exit_code == EXIT_NOT_HANDED_OVER
    if not (seen.heartbeat_silent or seen.driver_ended or never_began):
        return Action(Do.WAIT, f"Ray says that the job is over ({seen.job.value}), but its heartbeat is not silent yet")
    if seen.actors_alive:
        return Action(Do.WAIT, f"Ray says that the job is over ({seen.job.value}), but some of its actors are alive")
    if seen.overdue:
        return Action(Do.FAIL, seen.overdue, "timeout")
    if not seen.ours or seen.attempt_unwanted:
        return Action(Do.SUBMIT_NEXT, "the attempt of an earlier call ended, and could not say why; continuing the run")
    if seen.job is Job.STOPPED:
        return Action(Do.FAIL, "the job was stopped from outside", "cancelled")
    if never_began:
        return _lost(seen, "the job began too late: Ray had deleted the cluster's env_vars and env_files for it")
    return _lost(seen, f"the job ended ({seen.job.value}) without saying why: {seen.job_message[-300:]}")


def _out_of_sight(seen: Observed) -> Action:
    """The job can be neither seen nor stopped; its driver enforces deadlines and cancels by itself."""
    gone = seen.job is Job.OTHER_INCARNATION
    unasked = "its cluster cannot be queried" + (f" ({seen.job_message})" if seen.job_message else "")
    if not (seen.heartbeat_silent or seen.driver_ended):
        where = f"its cluster is gone ({seen.job_message or 'another head has replaced it'})" if gone else unasked
        return Action(Do.WAIT, f"{where}, and the heartbeat is not silent yet")
    if seen.overdue:
        return Action(Do.FAIL, seen.overdue, "timeout")
    if not gone and not seen.gave_up_on_cluster:
        return Action(Do.WAIT, f"{unasked}, but the job may still be running")
    why = "the cluster that ran it is gone" if gone else f"{unasked}, and limits.unreachable_timeout_s has passed"
    if seen.attempt_unwanted:
        return Action(Do.SUBMIT_NEXT, f"an earlier call cancelled its attempt, and {why}; continuing the run")
    return _lost(seen, why)


def _lost(seen: Observed, why: str, details: str = "", cause: str = LOST) -> Action:
    """The attempt was lost. `cause`: as `failure_policy` names it."""
    if seen.overdue:
        return Action(Do.FAIL, seen.overdue, "timeout")
    lost = seen.attempts_of_this_call - seen.restarts
    rule = seen.policy.rule(cause) if seen.policy is not None else None
    if rule is None:
        if lost < seen.max_attempts:
            return Action(Do.SUBMIT_NEXT, f"attempt {seen.attempt} was lost: {why}")
        spent = f"after {lost} attempts (limits.max_attempts): {why}"
        return Action(Do.FAIL, spent, "infrastructure", details, cause)
    if rule.action == "restart" and (rule.at_most < 0 or lost <= rule.at_most):
        return Action(Do.SUBMIT_NEXT, f"attempt {seen.attempt} was lost: {why}")
    says = "says to give up" if rule.action == "give_up" else f"allows {rule.at_most} restarts"
    gave_up = f"attempt {seen.attempt} was lost, and failure_policy.{cause} {says}: {why}"
    return Action(Do.FAIL, gave_up, GaveUpError.outcome, details, cause)
