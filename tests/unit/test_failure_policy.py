"""What ends an attempt is one of the documented causes, and what follows is what `failure_policy` says of it."""

from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
from ray.exceptions import ActorDiedError, OutOfMemoryError
from ray.train import ControllerError, WorkerGroupError
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError

from plugin_core.driver.train.judge import Judge
from plugin_core.driver.train.oom import OomWatch, kills
from plugin_core.driver.train.restarts import diagnose
from plugin_core.errors import (
    DamagedCheckpointError,
    GaveUpError,
    HangError,
    NanLossError,
    RestartError,
    StorageError,
    UserCodeError,
)
from plugin_core.errors.causes import cause_of
from plugin_core.ray_internals.controller import Process
from plugin_core.runs.attempts import AttemptEnd
from plugin_core.runs.history import History
from plugin_core.runs.recovery import Recovery
from plugin_core.specs.failure_policy import CAUSES, FailurePolicy
from plugin_core.supervisor.decide import Do, Job, Observed, decide

CONFIG = {"batch_size": 64, "lr": 0.1}
WORKERS = {rank: Process(7 + rank, "vm", f"node{rank}") for rank in range(3)}
PEER = RuntimeError("[gloo/transport/tcp/pair.cc:525] Read error [127.0.0.1]:1: Connection reset by peer")
MINE = ValueError("the data is bad")
GPU = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
ECC = RuntimeError("CUDA error: uncorrectable ECC error encountered")


def gone(text: str = "") -> Exception:
    return WorkerHealthCheckFailedError(f"A worker health check failed. {text}", ActorDiedError())


def failed(**ranks: Exception) -> WorkerGroupError:
    return WorkerGroupError("failed", {int(rank[1:]): error for rank, error in ranks.items()})


@pytest.mark.parametrize(("error", "cause", "rank"), [
    (failed(_0=PEER, _1=gone()), "worker_lost", 1),
    (failed(_0=gone("its node has died"), _1=gone()), "node_lost", 0),
    (failed(_1=gone("the node running low on memory")), "host_oom", 1),
    (failed(_1=OutOfMemoryError("killed")), "host_oom", 1),
    (failed(_1=gone("the node was preempted")), "preempted", 1),
    (failed(_0=PEER, _2=GPU), "gpu_oom", 2),
    (failed(_0=PEER, _2=RuntimeError("HIP out of memory. Tried to allocate")), "gpu_oom", 2),
    (failed(_0=PEER, _1=ECC), "bad_node", 1),
    (failed(_0=HangError("hang: no report"), _1=PEER), "hang", 0),
    (failed(_0=PEER, _1=NanLossError("the reported loss is nan")), "nan_loss", 1),
    (failed(_0=OSError(28, "No space left on device")), "storage", None),
    (failed(_0=StorageError("s3 does not answer")), "storage", 0),
    (failed(_0=PEER, _1=DamagedCheckpointError("checkpoint_4 is damaged")), "storage", 1),
    (failed(_0=MINE), "user_code", None),
    (failed(_0=PEER), "infrastructure", None),
    (ControllerError(StorageError("s3 does not answer")), "storage", None),
])  # fmt: skip
def test_each_failure_has_its_cause_and_the_rank_that_shows_it(error: Exception, cause: str, rank: int | None) -> None:
    assert cause in CAUSES
    assert cause_of(error) == (cause, rank)


def test_a_process_whose_node_does_not_answer_was_lost_with_it() -> None:
    """Ray takes some 15 s to see that a node is gone; until then its actors are only unavailable."""
    away = failed(_0=PEER, _1=gone("The actor f00 is unavailable: keepalive watchdog timeout."))
    assert diagnose(away, WORKERS).cause == "worker_lost"
    failure = diagnose(away, WORKERS, answers=lambda node: node != "node1")
    assert (failure.cause, failure.why) == ("node_lost", "worker rank 1 (pid 8, vm) was lost: its node died")


def test_only_the_rank_that_is_to_blame_names_a_node() -> None:
    assert diagnose(failed(_0=PEER, _1=gone()), WORKERS).node == "node1"
    assert diagnose(failed(_0=PEER, _1=GPU), WORKERS).node == "node1"
    assert diagnose(failed(_0=PEER), WORKERS).node == ""


@pytest.mark.parametrize(("before", "now", "cause", "said"), [
    (3, 4, "host_oom", "was killed by the kernel, as memory ran out"),
    (3, 3, "worker_lost", "was killed (SIGKILL) or crashed; the kernel killed nothing for memory"),
    (3, None, "worker_lost", "was killed (SIGKILL, or out of memory) or crashed"),
    (None, 4, "worker_lost", "was killed (SIGKILL, or out of memory) or crashed"),
])  # fmt: skip
def test_the_kernels_own_kill_is_told_from_any_other(before: int | None, now: int | None, cause: str, said: str) -> None:
    asked: list[str] = []

    def ask(node: str) -> int | None:
        asked.append(node)
        return now

    watch = OomWatch(ask)
    watch.begin("node1", before)
    found = diagnose(failed(_0=PEER, _1=gone()), WORKERS, watch)
    assert (found.cause, asked) == (cause, ["node1"] if before is not None else [])
    assert found.why == f"worker rank 1 (pid 8, vm) {said}"
    assert not watch.killed_on("node1"), "each kill is told once"


@pytest.mark.parametrize(("groups", "file", "expected"), [
    ("0::/pod/a\n", "sys/fs/cgroup/pod/a/memory.events", 5),
    ("0::/outside\n", "sys/fs/cgroup/memory.events", 5),
    ("9:name=systemd:/\n4:memory:/ray\n0::/\n", "sys/fs/cgroup/memory/ray/memory.oom_control", 5),
    ("4:cpu,memory,pids:/ray\n", "sys/fs/cgroup/memory/ray/memory.oom_control", 5),
    ("0::/\n", "proc/vmstat", 5),
    ("", "proc/none", None),
])  # fmt: skip
def test_kills_are_read_where_the_kernel_counts_them(tmp_path: Path, groups: str, file: str, expected: int | None) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(groups)
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("low 0\noom_kill_disable 0\noom 9\noom_kill 5\n")
    assert kills(tmp_path) == expected


def test_this_machine_counts_its_kills() -> None:
    assert isinstance(kills(), int)


# ---- what follows


def judge(**policy: Any) -> Judge:
    names = [f"checkpoint_{number}" for number in range(1, 5)]
    made = Judge(1, FailurePolicy(**policy), config=CONFIG, there=lambda: [*names, "other"], checkpoints=deque(names))
    made.begin(dict(WORKERS))
    return made


def test_without_a_rule_lost_workers_are_replaced_and_exceptions_end_the_training() -> None:
    court = judge(gpu_oom={"action": "give_up"})
    first, second, third = failed(_1=gone()), failed(_1=gone()), failed(_0=MINE)
    verdict = court.verdict(first)
    assert (verdict.error, verdict.resumes) == (None, "checkpoint_4")
    assert verdict.entry == {"cause": "worker_lost", "node": "node1", "failure": 1, "most": 1}
    assert court.verdict(first) is verdict, "an error is judged once"
    ended = court.verdict(second).error
    assert ended is not None, "max_failures is spent"
    assert (ended.retryable, ended.cause) == (True, "worker_lost")
    assert isinstance(court.verdict(third).error, UserCodeError)


def test_a_rule_has_a_budget_of_its_own_over_the_whole_run() -> None:
    court = judge(worker_lost={"at_most": 2})
    assert [court.verdict(failed(_1=gone())).error for _ in range(2)] == [None, None]
    ended = court.verdict(failed(_1=gone())).error
    assert isinstance(ended, GaveUpError)
    assert not ended.retryable
    assert ended.message.endswith("failure_policy.worker_lost.at_most allows no more than 2 restarts")
    later = judge(worker_lost={"at_most": 2})
    later.recovery.restarts["worker_lost"] = 2  # of earlier attempts
    assert isinstance(later.verdict(failed(_1=gone())).error, GaveUpError)
    endless = judge(worker_lost={"at_most": -1})
    assert {endless.verdict(failed(_1=gone())).error for _ in range(20)} == {None}


def test_give_up_ends_what_would_be_restarted_and_an_exception_stays_what_it_is() -> None:
    court = judge(worker_lost={"action": "give_up"}, user_code={"action": "give_up"})
    lost, mine = court.verdict(failed(_1=gone())).error, court.verdict(failed(_0=MINE)).error
    assert isinstance(lost, GaveUpError)
    assert lost.cause == "worker_lost"
    assert isinstance(mine, UserCodeError)
    assert mine.cause == "user_code"


def test_an_exception_is_restarted_where_the_policy_says_so() -> None:
    court = judge(user_code={"at_most": 1})
    assert court.verdict(failed(_0=MINE)).error is None
    assert isinstance(court.verdict(failed(_0=MINE)).error, UserCodeError)


def test_changed_values_hold_for_all_later_attempts_and_are_changed_further() -> None:
    court = judge(gpu_oom={"change": {"batch_size": {"times": 0.5}, "lr": 0.01}, "at_most": -1})
    first = court.verdict(failed(_0=PEER, _1=GPU))
    assert isinstance(first.error, RestartError)
    assert first.error.retryable
    assert first.error.cause == "gpu_oom"
    assert first.entry["changed"] == {"batch_size": 32, "lr": 0.01}
    assert "restarts with batch_size=32, lr=0.01" in first.why
    assert court.verdict(failed(_1=GPU)).entry["changed"] == {"batch_size": 16}
    for size in (8, 4, 2, 1):
        assert court.verdict(failed(_1=GPU)).entry["changed"] == {"batch_size": size}
    ended = court.verdict(failed(_1=GPU)).error
    assert isinstance(ended, UserCodeError), "nothing is left to change"


def test_going_back_drops_the_newest_checkpoints_that_exist() -> None:
    court = judge(nan_loss={"back": 2})
    court.there = lambda: ["checkpoint_1", "checkpoint_2", "checkpoint_4"]
    verdict = court.verdict(failed(_0=NanLossError("the reported loss is nan")))
    assert isinstance(verdict.error, RestartError)
    assert (verdict.entry["dropped"], verdict.resumes) == (["checkpoint_2", "checkpoint_4"], "checkpoint_1")
    court.there = list
    fresh = court.verdict(failed(_0=NanLossError("the reported loss is nan")))
    assert (fresh.error, fresh.resumes) == (None, ""), "nothing to drop: the workers just start again"


@pytest.mark.parametrize("final", [False, True])
def test_a_damaged_checkpoint_is_dropped_and_the_one_before_it_resumed_from(final: bool) -> None:
    court = judge()
    court.there = lambda: ["checkpoint_1", "checkpoint_2", "checkpoint_4"]
    error = DamagedCheckpointError("checkpoint_4 is damaged (w.bin fails its CRC-32 check)", checkpoint="checkpoint_4")
    verdict = court.verdict(failed(_0=error, _1=PEER), final=final)
    assert isinstance(verdict.error, RestartError)
    assert verdict.why == "checkpoint_4 is damaged (w.bin fails its CRC-32 check); restarts without it"
    assert (verdict.entry["cause"], verdict.entry["dropped"]) == ("storage", ["checkpoint_4"])
    assert verdict.resumes == "checkpoint_2"
    given_up = judge(storage={"action": "give_up"}).verdict(failed(_0=error))
    assert isinstance(given_up.error, GaveUpError)


def test_a_node_is_excluded_after_so_many_failures_of_its_own() -> None:
    court = judge(worker_lost={"exclude_node_after": 2, "at_most": -1})
    assert court.verdict(failed(_1=gone())).error is None
    assert court.verdict(failed(_0=gone())).error is None, "that was another node"
    verdict = court.verdict(failed(_1=gone()))
    assert isinstance(verdict.error, RestartError)
    assert verdict.entry["excluded"] == "node1"
    assert court.verdict(failed(_1=gone())).error is None, "it is excluded already"


def test_the_next_attempt_goes_by_what_the_journal_says() -> None:
    entries: list[dict[str, Any]] = [
        {"report": n, "index": n, "metrics": {"loss": 1.0}, "checkpoint": f"checkpoint_{n}"} for n in range(1, 5)
    ]
    court = judge(nan_loss={"back": 2, "change": {"lr": {"times": 0.5}}}, worker_lost={"exclude_node_after": 1})
    for error in (failed(_0=NanLossError("no")), failed(_2=gone())):
        entries.append({"phase": "failed", **court.verdict(error).entry})
    history = History.of(entries, there=[f"checkpoint_{n}" for n in range(1, 5)])
    assert list(history.checkpoints) == ["checkpoint_1", "checkpoint_2"]
    assert history.there == {"checkpoint_1", "checkpoint_2"}
    assert history.recovery == court.recovery
    assert history.recovery.changed == {"lr": 0.05}
    assert history.recovery.excluded == ["node2"]
    assert history.recovery.restarts == {"nan_loss": 1, "worker_lost": 1}


@pytest.mark.parametrize(
    "entry", [{"cause": 5}, {"cause": None, "node": [1], "changed": 5, "dropped": "x", "excluded": {}}]
)
def test_odd_entries_of_a_journal_leave_nothing_behind(entry: dict[str, Any]) -> None:
    recovery = Recovery()
    recovery.add(entry)
    assert (recovery.changed, recovery.dropped) == ({}, set())


# ---- attempts


def seen(end: AttemptEnd | None = None, **more: Any) -> Observed:
    job = Job.FAILED if end is None else Job.SUCCEEDED
    return Observed(attempt=1, ours=True, end=end, job=job, driver_ended=True, attempts_of_this_call=1, **more)


def test_an_attempt_that_the_policy_ended_is_followed_by_another_one_that_counts_for_nothing() -> None:
    restart = AttemptEnd("restart", "without the node x", cause="worker_lost")
    assert decide(seen(restart, max_attempts=1)).do is Do.SUBMIT_NEXT
    assert decide(seen(restart, overdue="too late")).do is Do.FAIL
    assert decide(seen(max_attempts=1, restarts=1)).do is Do.SUBMIT_NEXT
    assert decide(seen(max_attempts=1)).do is Do.FAIL


@pytest.mark.parametrize("end", [None, AttemptEnd("infrastructure", "a node died", cause="infrastructure")])
def test_the_supervisor_follows_the_same_table(end: AttemptEnd | None) -> None:
    never = FailurePolicy(infrastructure={"action": "give_up"})
    gave_up = decide(seen(end, policy=never))
    assert (gave_up.do, gave_up.outcome) == (Do.FAIL, "gave_up")
    once = FailurePolicy(infrastructure={"at_most": 1})
    assert decide(seen(end, policy=once, max_attempts=1)).do is Do.SUBMIT_NEXT
    spent = seen(end, policy=FailurePolicy(infrastructure={"at_most": 0}))
    assert decide(spent).outcome == "gave_up"
    assert decide(seen(end, policy=FailurePolicy(hang={"action": "give_up"}))).do is Do.SUBMIT_NEXT
