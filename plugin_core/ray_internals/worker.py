"""A Ray Train worker: its context, and the object behind `ray.train.report` and `ray.train.get_checkpoint`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import ray
import ray.train
from ray._private.worker import global_worker
from ray.train._internal import session
from ray.train.v2._internal.execution import train_fn_utils
from ray.train.v2._internal.execution.context import get_train_context
from ray.train.v2._internal.execution.train_fn_utils import DistributedTrainFnUtils as DistributedTrainFnUtils
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.tune import PlacementGroupFactory
from ray.tune.execution.tune_controller import TuneController


class WorkerContext(Protocol):
    #: calls of `ray.train.report` by this worker since its worker group started
    report_call_index: int

    def get_world_rank(self) -> int: ...


def worker_context() -> WorkerContext:
    """The context of this worker. Raises RuntimeError outside a worker."""
    context: WorkerContext = get_train_context()
    return context


def install(utils: DistributedTrainFnUtils) -> None:
    """Make `ray.train.report` and related functions, and their `ray.tune` counterparts, call `utils` in this worker."""
    train_fn_utils.set_train_fn_utils(utils)
    session._session = _TuneSession(utils)


def forbid_fit(refuse: Callable[[], NoReturn]) -> None:
    """Call `refuse` instead of starting a training or a search from within this worker, which would wait for resources
    that this worker holds, and whose reports nobody would see."""

    def instead(*args: Any, **kwargs: Any) -> NoReturn:
        refuse()

    DataParallelTrainer.fit = instead
    TuneController.__init__ = instead


class Done(BaseException):
    """Raised to end a loop that told Ray Tune it is done."""


_RANKS = ("world_rank", "world_size", "local_rank", "local_world_size", "node_rank")


class _TuneSession:
    """The session behind `ray.tune.report`, `ray.tune.get_checkpoint` and `ray.tune.get_context`. Ray Train's workers
    have none, and without one these functions do nothing."""

    def __init__(self, utils: DistributedTrainFnUtils):
        self._utils = utils

    def report(self, metrics: dict[str, Any], checkpoint: ray.train.Checkpoint | None = None) -> None:
        self._utils.report(metrics, checkpoint)
        if metrics.get("done"):
            raise Done

    @property
    def trial_resources(self) -> PlacementGroupFactory:
        return PlacementGroupFactory([ray.get_runtime_context().get_assigned_resources()])

    @property
    def loaded_checkpoint(self) -> ray.train.Checkpoint | None:
        found: ray.train.Checkpoint | None = self._utils.get_checkpoint()
        return found

    def __getattr__(self, name: str) -> Any:
        """This worker's rank and the like; None for whatever belongs to a trial, as without a session."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(get_train_context(), f"get_{name}")() if name in _RANKS else None


def upload_checkpoint(checkpoint: ray.train.Checkpoint, name: str) -> ray.train.Checkpoint:
    """Upload a local checkpoint to this worker's run directory, as Ray Train does."""
    return get_train_context().storage_context.persist_current_checkpoint(checkpoint, name)


def output_files() -> list[str]:
    """The files to which Ray redirects this worker process's output; none outside a worker."""
    return [path for path in (global_worker.get_out_file_path(), global_worker.get_err_file_path()) if path]
