"""The decision table: observation → next action."""

import itertools
from dataclasses import replace

import pytest

from plugin_core.errors import EXIT_NOT_SHARED, NO_RESOURCES, TERMINATED
from plugin_core.runs.directory import AttemptEnd
from plugin_core.supervisor.decide import NOT_INSTALLED, SETUP_FAILED, Action, Do, Job, Observed, decide, is_over

USER_ERROR = AttemptEnd("user_error", "worker 0: ValueError: no", "Traceback …")
LOST = AttemptEnd("infrastructure", "a node died")
SUCCEEDED = AttemptEnd("succeeded")
TERM = AttemptEnd(TERMINATED, "SIGTERM")
NO_ROOM = AttemptEnd("timeout", "the step got no resources", cause=NO_RESOURCES)


def seen(**fields: object) -> Observed:
    return Observed(**{"attempt": 1, "ours": True, "attempts_of_this_call": 1, **fields})


TABLE = [
    (
        "a result is returned, whatever else is seen",
        seen(has_result=True, job=Job.UNREACHABLE, cancel_wanted=True),
        Do.RETURN,
    ),
    ("nothing ran yet: submit", Observed(), Do.SUBMIT_NEXT),
    ("a receipt without a job on the same cluster: submit that job", seen(job=Job.ABSENT), Do.SUBMIT_SAME),
    ("a pending job is waited for", seen(job=Job.PENDING), Do.WAIT),
    ("a running job is waited for", seen(job=Job.RUNNING), Do.WAIT),
    ("a running job with a silent heartbeat is waited for", seen(job=Job.RUNNING, heartbeat_silent=True), Do.WAIT),
    ("an end recorded while the job is still shutting down: wait", seen(job=Job.RUNNING, end=LOST), Do.WAIT),
    ("unreachable does not mean dead", seen(job=Job.UNREACHABLE, heartbeat_silent=True), Do.WAIT),
    (
        "unreachable for too long, but the heartbeat moves: wait",
        seen(job=Job.UNREACHABLE, gave_up_on_cluster=True),
        Do.WAIT,
    ),
    (
        "unreachable for too long and silent: next attempt elsewhere",
        seen(job=Job.UNREACHABLE, gave_up_on_cluster=True, heartbeat_silent=True),
        Do.SUBMIT_NEXT,
    ),
    ("FAILED while the heartbeat is not silent is not dead", seen(job=Job.FAILED), Do.WAIT),
    ("FAILED and the driver's process has ended: next attempt", seen(job=Job.FAILED, driver_ended=True), Do.SUBMIT_NEXT),
    ("FAILED and an actor outlives the driver: wait", seen(job=Job.FAILED, driver_ended=True, actors_alive=True), Do.WAIT),
    ("FAILED and silent is lost: next attempt", seen(job=Job.FAILED, heartbeat_silent=True), Do.SUBMIT_NEXT),
    ("a cluster without our package fails the step", seen(job=Job.FAILED, job_message=NOT_INSTALLED), Do.FAIL),
    ("SUCCEEDED without a result is not a success", seen(job=Job.SUCCEEDED, heartbeat_silent=True), Do.SUBMIT_NEXT),
    ("a job stopped from outside is not restarted", seen(job=Job.STOPPED, heartbeat_silent=True), Do.FAIL),
    ("another incarnation, heartbeat not yet silent: wait", seen(job=Job.OTHER_INCARNATION), Do.WAIT),
    (
        "another incarnation and silent: next attempt",
        seen(job=Job.OTHER_INCARNATION, heartbeat_silent=True),
        Do.SUBMIT_NEXT,
    ),
    (
        "another incarnation, and nothing is left of the last one: next attempt",
        seen(job=Job.OTHER_INCARNATION, driver_ended=True),
        Do.SUBMIT_NEXT,
    ),
    ("infrastructure loss within the budget: next attempt", seen(job=Job.FAILED, end=LOST), Do.SUBMIT_NEXT),
    ("infrastructure loss beyond the budget: fail", seen(job=Job.FAILED, end=LOST, attempts_of_this_call=3), Do.FAIL),
    ("a user error is never retried", seen(job=Job.FAILED, end=USER_ERROR), Do.FAIL),
    (
        "a user error of an earlier call: this call continues",
        seen(job=Job.FAILED, end=USER_ERROR, ours=False),
        Do.SUBMIT_NEXT,
    ),
    ("a lost attempt of an earlier call: this call continues", seen(job=Job.ABSENT, end=LOST, ours=False), Do.SUBMIT_NEXT),
    ("cancel wanted, job running: stop it", seen(job=Job.RUNNING, cancel_wanted=True), Do.STOP),
    ("cancel wanted, job pending: stop it", seen(job=Job.PENDING, cancel_wanted=True), Do.STOP),
    ("cancel wanted, cluster unreachable: wait, the driver obeys", seen(job=Job.UNREACHABLE, cancel_wanted=True), Do.WAIT),
    ("cancel wanted, job over: cancelled", seen(job=Job.STOPPED, cancel_wanted=True), Do.FAIL),
    ("cancel wanted before anything ran: cancelled", Observed(cancel_wanted=True), Do.FAIL),
    (
        "cancel wanted, unreachable and silent: presumed cancelled",
        seen(job=Job.UNREACHABLE, cancel_wanted=True, heartbeat_silent=True),
        Do.FAIL,
    ),
    (
        "cancel wanted, job over, but processes still alive: wait for them",
        seen(job=Job.STOPPED, cancel_wanted=True, actors_alive=True),
        Do.WAIT,
    ),
    (
        "cancelled by the driver while unreachable: cancelled",
        seen(job=Job.UNREACHABLE, cancel_wanted=True, end=LOST),
        Do.FAIL,
    ),
    (
        "cancelled, and another call started a later attempt: leave that one alone",
        seen(job=Job.RUNNING, cancel_wanted=True, superseded=True),
        Do.FAIL,
    ),
    ("an attempt that an earlier call cancelled is stopped", seen(job=Job.RUNNING, attempt_unwanted=True), Do.STOP),
    (
        "and once it is over, this call continues",
        seen(job=Job.STOPPED, attempt_unwanted=True, end=AttemptEnd("cancelled")),
        Do.SUBMIT_NEXT,
    ),
    ("cancelled before its submit: this call continues", seen(job=Job.ABSENT, attempt_unwanted=True), Do.SUBMIT_NEXT),
    (
        "FAILED and silent, but its actors are alive: wait",
        seen(job=Job.FAILED, heartbeat_silent=True, actors_alive=True),
        Do.WAIT,
    ),
    ("an end recorded, but its actors are alive: wait", seen(job=Job.FAILED, end=LOST, actors_alive=True), Do.WAIT),
    ("an end recorded, but the job hangs: stop it", seen(job=Job.RUNNING, end=LOST, heartbeat_silent=True), Do.STOP),
    ("the end says succeeded, the result is not visible yet: wait", seen(job=Job.SUCCEEDED, end=SUCCEEDED), Do.WAIT),
    (
        "the end says succeeded, the result is gone: next attempt",
        seen(job=Job.SUCCEEDED, end=SUCCEEDED, heartbeat_silent=True),
        Do.SUBMIT_NEXT,
    ),
    ("a SIGTERM with the job stopped: stopped from outside", seen(job=Job.STOPPED, end=TERM), Do.FAIL),
    ("a SIGTERM although nobody stopped the job: a lost node", seen(job=Job.FAILED, end=TERM), Do.SUBMIT_NEXT),
    ("a SIGTERM on a head that is gone", seen(job=Job.OTHER_INCARNATION, end=TERM), Do.SUBMIT_NEXT),
    ("lost after the deadline: no further attempt", seen(job=Job.FAILED, end=LOST, overdue="too long"), Do.FAIL),
    (
        "overdue, unreachable, heartbeat moving: its driver enforces the limit",
        seen(job=Job.UNREACHABLE, overdue="too long"),
        Do.WAIT,
    ),
    ("overdue before anything ran: timeout", Observed(overdue="too long"), Do.FAIL),
    ("overdue and running: stop", seen(job=Job.RUNNING, overdue="too long"), Do.STOP),
    ("overdue and over: timeout", seen(job=Job.STOPPED, overdue="too long", heartbeat_silent=True), Do.FAIL),
    ("storage not shared: rejected", seen(job=Job.FAILED, job_exit_code=EXIT_NOT_SHARED), Do.FAIL),
    ("no Python there: rejected", seen(job=Job.FAILED, job_exit_code=127), Do.FAIL),
    (
        "no Python there for an earlier call: retried",
        seen(job=Job.FAILED, job_exit_code=127, ours=False, heartbeat_silent=True),
        Do.SUBMIT_NEXT,
    ),
    (
        "storage not shared with an earlier call: retried",
        seen(job=Job.FAILED, job_exit_code=EXIT_NOT_SHARED, ours=False, driver_ended=True),
        Do.SUBMIT_NEXT,
    ),
    ("its runtime_env cannot be set up: rejected", seen(job=Job.FAILED, job_error_type=SETUP_FAILED), Do.FAIL),
    (
        "its runtime_env could not be set up for an earlier call: retried",
        seen(job=Job.FAILED, job_error_type=SETUP_FAILED, ours=False, heartbeat_silent=True),
        Do.SUBMIT_NEXT,
    ),
]


@pytest.mark.parametrize(("observed", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_the_table(observed: Observed, expected: Do) -> None:
    assert decide(observed).do is expected


@pytest.mark.parametrize(
    ("observed", "outcome"),
    [
        (seen(job=Job.FAILED, end=USER_ERROR), "user_error"),
        (seen(job=Job.FAILED, end=LOST, attempts_of_this_call=3), "infrastructure"),
        (seen(job=Job.STOPPED, heartbeat_silent=True), "cancelled"),
        (seen(job=Job.STOPPED, overdue="too long", end=TERM), "timeout"),
        (seen(job=Job.STOPPED, end=TERM), "cancelled"),
        (seen(job=Job.FAILED, job_exit_code=EXIT_NOT_SHARED), "spec_error"),
    ],
)
def test_a_failure_has_its_outcome(observed: Observed, outcome: str) -> None:
    assert decide(observed).outcome == outcome


def test_a_user_error_carries_the_users_traceback() -> None:
    action = decide(seen(job=Job.FAILED, end=USER_ERROR))
    assert action == Action(Do.FAIL, USER_ERROR.message, "user_error", USER_ERROR.details)


VALUES = {
    "attempt": [0, 1],
    "ours": [True, False],
    "end": [None, LOST, USER_ERROR, SUCCEEDED, TERM],
    "job": list(Job),
    "actors_alive": [True, False],
    "driver_ended": [True, False],
    "heartbeat_silent": [True, False],
    "cancel_wanted": [True, False],
    "superseded": [True, False],
    "attempt_unwanted": [True, False],
    "attempts_of_this_call": [1, 3],
    "overdue": ["", "overdue"],
    "gave_up_on_cluster": [True, False],
}
EVERYTHING = [Observed(**dict(zip(VALUES, values, strict=True))) for values in itertools.product(*VALUES.values())]


def test_every_observation_leads_to_an_action() -> None:
    assert {decide(observed).do for observed in EVERYTHING} <= set(Do)


GONE = (Job.UNREACHABLE, Job.OTHER_INCARNATION)


def test_no_attempt_starts_while_another_job_may_be_alive() -> None:
    """Over all observations: no submit while the job is alive, or may be alive: its driver's process is not known to have
    ended, and its heartbeat is not silent."""
    for observed in EVERYTHING:
        if decide(observed).do is not Do.SUBMIT_NEXT or observed.attempt == 0:
            continue
        assert observed.job not in (Job.PENDING, Job.RUNNING), observed
        assert not observed.actors_alive or observed.job in (Job.ABSENT, Job.UNASKED, *GONE), observed
        never_submitted = observed.job is Job.ABSENT
        over = observed.driver_ended or observed.heartbeat_silent
        assert observed.end is not None or over or never_submitted, observed
        if observed.job is Job.UNREACHABLE and observed.end is None:
            assert observed.gave_up_on_cluster, observed


def test_no_attempt_counts_as_over_while_it_may_be_alive() -> None:
    for observed in EVERYTHING:
        if is_over(observed):
            assert observed.job in (Job.SUCCEEDED, Job.FAILED, Job.STOPPED, Job.OTHER_INCARNATION), observed
            assert observed.driver_ended or observed.heartbeat_silent, observed
            assert not observed.actors_alive, observed


def test_a_failed_attempt_counts_as_over_unless_its_cluster_is_cut_off() -> None:
    """Otherwise each later call would judge it again, and fail."""
    for observed in EVERYTHING:
        action = decide(observed)
        if observed.actors_alive:
            continue
        if action.do is Do.FAIL and action.outcome != "cancelled" and observed.attempt and observed.end is None:
            assert is_over(observed) or observed.job in (Job.ABSENT, Job.UNASKED, Job.UNREACHABLE), observed


def test_nothing_is_started_after_the_deadline() -> None:
    for observed in EVERYTHING:
        if observed.overdue:
            assert decide(observed).do not in (Do.SUBMIT_NEXT, Do.SUBMIT_SAME), observed


def test_a_cancelled_run_is_never_restarted() -> None:
    for observed in EVERYTHING:
        if observed.cancel_wanted:
            assert decide(observed).do not in (Do.SUBMIT_NEXT, Do.SUBMIT_SAME), observed


@pytest.mark.parametrize(
    ("what", "observed", "moves_on"),
    [
        ("no resources came", seen(job=Job.FAILED, end=NO_ROOM), True),
        ("no resources came, to an earlier call", seen(job=Job.FAILED, end=NO_ROOM, ours=False), True),
        ("its cluster is gone", seen(job=Job.OTHER_INCARNATION, heartbeat_silent=True), True),
        ("its cluster is gone, as its driver said", seen(job=Job.OTHER_INCARNATION, end=TERM), True),
        ("cut off and silent", seen(job=Job.UNREACHABLE, gave_up_on_cluster=True, heartbeat_silent=True), True),
        ("it was lost, and its cluster lives", seen(job=Job.FAILED, end=LOST), False),
        ("it was never submitted", seen(job=Job.ABSENT, attempt_unwanted=True), False),
        ("nothing ran yet", Observed(), False),
    ],
)
def test_the_next_attempt_moves_on_to_another_cluster_if_this_one_gives_nothing(
    what: str, observed: Observed, moves_on: bool
) -> None:
    action = decide(replace(observed, elsewhere=True))
    assert (action.do, action.moves_on) == (Do.SUBMIT_NEXT, moves_on), what
    assert not decide(observed).moves_on, "there is no other one"


def test_no_run_moves_on_while_its_attempt_may_live_or_its_time_is_over() -> None:
    cut_off = seen(job=Job.UNREACHABLE, gave_up_on_cluster=True, elsewhere=True)
    assert decide(cut_off).do is Do.WAIT, "the heartbeat moves"
    for end, job in ((NO_ROOM, Job.RUNNING), (NO_ROOM, Job.PENDING)):
        assert decide(seen(job=job, end=end, elsewhere=True)).do is Do.WAIT
    assert decide(seen(job=Job.FAILED, end=NO_ROOM, elsewhere=True, overdue="too long")).do is Do.FAIL
    assert decide(seen(job=Job.FAILED, end=NO_ROOM)).do is Do.FAIL, "it is on its last cluster"
