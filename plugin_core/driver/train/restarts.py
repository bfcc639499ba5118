"""Says why the workers of a training restart, or why it failed: one line, for the journal."""

from __future__ import annotations

import re
from collections.abc import Mapping

from plugin_core.errors import InfrastructureError, UserCodeError
from plugin_core.errors.classify import classify, is_infrastructure, one_line, unwrapped

#: What Ray says of a process that is gone → what became of it. Ray does not know which signal ended it.
_DEATHS = (
    (re.compile(r"running low on memory|OutOfMemoryError"), "was killed: its node was low on memory"),
    (re.compile(r"node has died|node died|node was dead"), "was lost: its node died"),
    (re.compile(r"preempt", re.IGNORECASE), "was lost: its node was taken away"),
    (
        re.compile(r"connection error code 2|unexpected system error|The actor died unexpectedly"),
        "was killed (SIGKILL, or out of memory) or crashed",
    ),
)


def is_restart(error: BaseException) -> bool:
    """Whether Ray may start the workers again; anything else ends the training (see `guard_callback`)."""
    return isinstance(classify(error), InfrastructureError)


def counts(error: BaseException) -> bool:
    """Whether it counts as one of `max_failures`: Ray counts preemptions, and controllers that fail, apart."""
    from ray.train import WorkerGroupError

    if not isinstance(error, WorkerGroupError):
        return False
    causes = [getattr(cause, "health_check_failure", cause) for cause in error.worker_failures.values()]
    return not any(getattr(cause, "preempted", False) for cause in causes)


def why(error: BaseException, workers: Mapping[int, str]) -> str:
    """`workers`: rank → the worker's process and host."""
    found = unwrapped(error)
    lost = {rank: cause for rank, cause in found.items() if is_infrastructure(cause)}
    if not lost or not is_restart(error):
        return _failure(error, found)
    rank, cause = next(iter(lost.items()))
    if rank is None:
        return f"the workers could not start or were lost: {one_line(cause)}"
    # a peer of a lost worker says no more than that a connection broke
    dead = {other: became for other in lost if (became := _death(str(lost[other])))}
    if not dead:
        return f"worker rank {rank}{_process(rank, workers)} lost a connection: {one_line(cause)}"
    rank, became = next(iter(dead.items()))
    more = f"; so were {len(dead) - 1} more" if len(dead) > 1 else ""
    return f"worker rank {rank}{_process(rank, workers)} {became}{more}"


def _failure(error: BaseException, found: Mapping[int | None, BaseException]) -> str:
    ours = classify(error)
    if not isinstance(ours, UserCodeError) or ours in found.values():
        return ours.message
    rank, cause = next(iter(found.items()))
    return f"the train function raised {one_line(cause)}" + (f" (rank {rank})" if rank is not None else "")


def _death(said: str) -> str:
    return next((became for pattern, became in _DEATHS if pattern.search(said)), "")


def _process(rank: int, workers: Mapping[int, str]) -> str:
    return f" ({workers[rank]})" if rank in workers else ""
