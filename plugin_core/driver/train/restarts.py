"""What ended a worker group: its cause, and the reason in one line, for the journal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from plugin_core.driver.train.oom import OomWatch
from plugin_core.errors import UserCodeError
from plugin_core.errors.causes import cause_of, loss
from plugin_core.errors.classify import classify, is_infrastructure, one_line, unwrapped
from plugin_core.ray_internals.controller import Process

#: The cause of a process's end → what became of it.
_BECAME = {
    "host_oom": "was killed: its node was low on memory",
    "node_lost": "was lost: its node died",
    "preempted": "was lost: its node was taken away",
    "worker_lost": "was killed (SIGKILL, or out of memory) or crashed",
}
#: The same, once the kernel has been asked.
_BY_KERNEL = {
    True: "was killed by the kernel, as memory ran out",
    False: "was killed (SIGKILL) or crashed; the kernel killed nothing for memory",
    None: _BECAME["worker_lost"],
}


@dataclass(frozen=True)
class Failure:
    """`node`: the Ray id of the node of the rank that failed; "" if no rank is to blame."""

    cause: str
    why: str
    node: str = ""


def counts(error: BaseException) -> bool:
    """Whether the error counts towards `max_failures`: Ray counts preemptions and controller failures separately."""
    from ray.train import WorkerGroupError

    if not isinstance(error, WorkerGroupError):
        return False
    causes = [getattr(cause, "health_check_failure", cause) for cause in error.worker_failures.values()]
    return not any(getattr(cause, "preempted", False) for cause in causes)


def diagnose(
    error: BaseException,
    workers: Mapping[int, Process],
    oom: OomWatch | None = None,
    answers: Callable[[str], bool] = bool,
) -> Failure:
    """`workers`: the processes of the worker group, by rank. `oom`: knows whether the kernel killed for lack of memory.
    `answers`: whether a node is alive."""
    (cause, blamed), found = cause_of(error), unwrapped(error)
    lost = {rank: each for rank, each in found.items() if is_infrastructure(each)}
    rank = blamed if blamed is not None else next(iter(lost or found))
    who, node = f"worker rank {rank}", ""
    if rank in workers:
        who, node = f"{who} ({workers[rank]})", workers[rank].node
    if cause == "worker_lost" and node and not answers(node):
        cause = "node_lost"
    if cause in _BECAME:
        return _process_gone(cause, who, node, sum(bool(loss(each)) for each in lost.values()), oom)
    if cause == "bad_node":
        return Failure(cause, f"{who} met a hardware error: {one_line(found[rank])}", node)
    ours = classify(error)
    if cause == "gpu_oom" or (isinstance(ours, UserCodeError) and ours not in found.values()):
        of_rank = f" (rank {rank})" if rank is not None else ""
        return Failure(cause, f"the train function raised {one_line(found[rank])}{of_rank}", node)
    if cause != "infrastructure" or not lost:
        return Failure(cause, ours.message, node if cause == "hang" else "")
    if rank is None:
        return Failure(cause, f"the workers could not start or were lost: {one_line(found[rank])}")
    # the rank that says so need not be the one that broke the connection
    return Failure(cause, f"{who} lost a connection: {one_line(found[rank])}")


def _process_gone(cause: str, who: str, node: str, gone: int, oom: OomWatch | None) -> Failure:
    """`gone`: how many processes are gone."""
    became = _BECAME[cause]
    if cause == "worker_lost" and oom is not None and node:
        killed = oom.killed_on(node)
        cause, became = "host_oom" if killed else cause, _BY_KERNEL[killed]
    return Failure(cause, f"{who} {became}" + (f"; so were {gone - 1} more" if gone > 1 else ""), node)
