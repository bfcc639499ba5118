"""Callbacks of Ray Train's controller. The public `UserCallback` is not notified of phases or of the end of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ray.train import Checkpoint
from ray.train.v2._internal.execution.callback import ControllerCallback as ControllerCallback
from ray.train.v2._internal.execution.callback import ReportCallback as ReportCallback
from ray.train.v2._internal.execution.callback import WorkerGroupCallback as WorkerGroupCallback
from ray.train.v2._internal.execution.training_report import _TrainingReport


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


def worker_nodes(workers: list[Any]) -> list[str]:
    """The ids of the workers' nodes, by rank."""
    ranked = sorted(workers, key=lambda worker: worker.distributed_context.world_rank)
    return [worker.metadata.node_id for worker in ranked]


def take_blocked_s(worker_group: Any) -> float:
    """How many seconds reports with a checkpoint have blocked rank 0's loop since the last call; 0 if the controller is
    an actor, which is not told."""
    seconds: float = getattr(worker_group, "blocked_s", 0.0)
    if seconds:
        worker_group.blocked_s = 0.0
    return seconds


def take_news(worker_group: Any) -> list[tuple[int, Any]]:
    """What the workers have sent (see `polled_worker.tell`) since the last call, with their ranks."""
    news: list[tuple[int, Any]] = worker_group.news
    worker_group.news = []
    return news


def reports_so_far(worker_group: Any) -> int:
    """How many reports the controller has registered, as its workers count them. It must be in this process."""
    reports: int = worker_group._registered._current_report_index
    return reports


def register_stored(worker_group: Any, name: str, metrics: dict[str, Any]) -> None:
    """Register a checkpoint that is in the run directory but was missing from its report. The worker group's controller
    must be in this process."""
    manager = worker_group._registered
    storage = manager._storage_context
    checkpoint = Checkpoint(storage.build_checkpoint_path_from_name(name), storage.storage_filesystem)
    manager.register_checkpoint(_TrainingReport(checkpoint=checkpoint, metrics=metrics, validation=False))
    manager._current_report_index -= 1  # it counts only reports
