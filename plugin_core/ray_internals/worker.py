"""A Ray Train worker: its context, and the object behind `ray.train.report` and `ray.train.get_checkpoint`."""

from __future__ import annotations

from typing import Protocol

import ray.train
from ray.train.v2._internal.execution import train_fn_utils
from ray.train.v2._internal.execution.context import get_train_context
from ray.train.v2._internal.execution.train_fn_utils import DistributedTrainFnUtils as DistributedTrainFnUtils


class WorkerContext(Protocol):
    #: calls of `ray.train.report` by this worker since its worker group started
    report_call_index: int

    def get_world_rank(self) -> int: ...


def worker_context() -> WorkerContext:
    """The context of this worker. Raises RuntimeError outside a worker."""
    context: WorkerContext = get_train_context()
    return context


def install(utils: DistributedTrainFnUtils) -> None:
    """Make `ray.train.report` and related functions call `utils` in this worker."""
    train_fn_utils.set_train_fn_utils(utils)


def upload_checkpoint(checkpoint: ray.train.Checkpoint, name: str) -> ray.train.Checkpoint:
    """Upload a local checkpoint to this worker's run directory, as Ray Train does."""
    return get_train_context().storage_context.persist_current_checkpoint(checkpoint, name)
