"""How the timings of the two sides of a run depend on each other."""

from plugin_core.clusters.secrets import KEPT_S, RENEW_S
from plugin_core.runs import timings as cluster
from plugin_core.specs import Limits
from plugin_core.supervisor import timings as orchestrator

TTL_S = Limits().heartbeat_ttl_s


def test_a_few_missed_heartbeats_or_looks_make_no_silent_heartbeat() -> None:
    assert 5 * cluster.BEAT_S <= TTL_S
    assert 5 * orchestrator.POLL_MAX_S <= TTL_S


def test_an_attempt_that_is_fenced_is_gone_before_the_one_after_it_can_be_given_up() -> None:
    assert 2 * max(cluster.BEAT_S, cluster.FENCE_EVERY_S) <= TTL_S


def test_a_write_trusts_the_fence_no_longer_than_the_driver_does() -> None:
    assert min(cluster.BEAT_S, cluster.FENCE_EVERY_S) >= cluster.FENCE_CACHE_S


def test_each_later_look_finds_what_was_reported_since_the_one_before() -> None:
    assert orchestrator.POLL_FIRST_S < orchestrator.POLL_MAX_S
    assert 2 * cluster.FLUSH_S <= orchestrator.POLL_MAX_S


def test_a_driver_exits_by_itself_before_it_is_stopped_and_is_stopped_before_it_is_left() -> None:
    assert cluster.EXIT_S + 2 * orchestrator.POLL_MAX_S <= orchestrator.STOP_S
    assert orchestrator.STOP_S + 2 * orchestrator.POLL_MAX_S <= orchestrator.LEAVE_S


def test_a_head_that_no_one_can_ask_is_given_far_more_than_a_silent_heartbeat_as_the_limit_says() -> None:
    assert orchestrator.EMBEDDED_WAIT_S >= 5 * TTL_S
    assert f"{orchestrator.EMBEDDED_WAIT_S:g} s" in str(Limits.model_fields["unreachable_timeout_s"].description)


def test_one_missed_renewal_loses_no_hand_over() -> None:
    assert 2 * RENEW_S < KEPT_S
