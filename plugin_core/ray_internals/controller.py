"""Callbacks of Ray Train's controller. The public `UserCallback` is not notified of phases or of the end of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ray.train.v2._internal.execution.callback import ControllerCallback as ControllerCallback
from ray.train.v2._internal.execution.callback import ReportCallback as ReportCallback
from ray.train.v2._internal.execution.callback import WorkerGroupCallback as WorkerGroupCallback


def state_name(state: Any) -> str:
    """The controller state's name in lower case: initializing, scheduling, running, restarting, …"""
    return str(state._state_type.state_name).lower()


@dataclass(frozen=True)
class Process:
    """A worker's process. `node`: the id of its node in Ray."""

    pid: int
    host: str
    node: str

    def __str__(self) -> str:
        return f"pid {self.pid}, {self.host}"


def worker_processes(worker_group: Any) -> dict[int, Process]:
    """Each worker's process, by its rank."""
    return {
        worker.distributed_context.world_rank: Process(
            worker.metadata.pid, worker.metadata.hostname, worker.metadata.node_id
        )
        for worker in worker_group.get_workers()
    }


def take_blocked_s(worker_group: Any) -> float:
    """Seconds that reports with a checkpoint blocked the loop of rank 0 since the last call; 0 where the controller is an
    actor, which does not hear it."""
    seconds: float = getattr(worker_group, "blocked_s", 0.0)
    if seconds:
        worker_group.blocked_s = 0.0
    return seconds
