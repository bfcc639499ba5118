"""Run Ray Train's controller in this process, instead of in an actor of its own.

An actor is one more process that imports Ray Train and the framework: 3 to 4 CPU seconds at each start (measured). The
process that waits for it has imported them already. Workers cannot call this process as they would call an actor, so
their questions to the controller travel with the controller's polls (see `polled_worker`).
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.train.v2._internal.execution.checkpoint.checkpoint_manager import CheckpointManager
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.worker_group import Worker, WorkerGroup, WorkerGroupPollStatus
from ray.train.v2._internal.execution.worker_group.poll import PollTask, WorkerStatus
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from plugin_core.ray_internals.polled_worker import RayTrainWorker, ask_s

#: Seconds between two polls, in which the event loop can do other work, such as answering a worker.
PAUSE_S = 0.002
#: Seconds to wait for the other workers' news after the first one's, plus some for each worker, so that reports that
#: arrive together cost one round.
GATHER_S, GATHER_S_PER_WORKER = 0.003, 0.0001


class _WorkerGroup(WorkerGroup):
    """Keeps one open poll at each worker, which the worker answers once there is news."""

    _worker_cls = RayTrainWorker
    #: seconds that reports with a checkpoint blocked rank 0's loop, and that nobody has asked for yet
    blocked_s = 0.0

    def __init__(self, train_run_context: Any, worker_group_context: Any, callbacks: list[Any] | None = None):
        super().__init__(train_run_context, worker_group_context, callbacks)
        self._registered = next(each for each in callbacks or [] if isinstance(each, CheckpointManager))
        #: (rank, what it sent) that nobody has asked for yet
        self.news: list[tuple[int, Any]] = []
        self._answers: dict[int, dict[int, Any]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        #: rank → the answer to its last poll, once its function has ended: it has no more news
        self._ended: dict[int, ray.ObjectRef] = {}

    def _init_train_context_on_workers(
        self, workers: list[Worker], sync_actor: ActorHandle, train_context_args: dict[str, list[Any]]
    ) -> None:
        """Like the base class, but without the controller's actor handle: there is none."""
        ray.get(
            [
                worker.actor.init_train_context.remote(
                    train_run_context=self._train_run_context,
                    distributed_context=worker.distributed_context,
                    synchronization_actor=sync_actor,
                    storage_context=self._storage_context,
                    worker_callbacks=self._worker_callbacks_to_propagate,
                    controller_actor=None,
                    **{name: values[i] for name, values in train_context_args.items()},
                )
                for i, worker in enumerate(workers)
            ]
        )
        self._decorate_worker_log_file_paths(workers)

    def poll_status(self, timeout: float | None = None) -> WorkerGroupPollStatus:
        """Wait at most `timeout` seconds for the first worker's news, then a moment for the others'."""
        workers = len(self.get_workers())
        if awaited := [task for rank, task in enumerate(self._get_poll_tasks()) if rank not in self._ended]:
            ray.wait(awaited, num_returns=1, timeout=ask_s(workers) if timeout is None else timeout)
        return super().poll_status(GATHER_S + GATHER_S_PER_WORKER * workers)

    def _get_poll_tasks(self) -> list[ray.ObjectRef]:
        registered: int = self._registered._current_report_index
        open_polls = self._world_rank_to_ongoing_poll
        for rank, worker in enumerate(self.get_workers()):
            if rank not in open_polls and rank not in self._ended:
                task = worker.actor.poll_status.remote(registered, self._answers.pop(rank, {}))
                open_polls[rank] = PollTask(start_time=time.monotonic(), task=task)
        return [self._ended[rank] if rank in self._ended else open_polls[rank].task for rank in range(len(self))]

    def _poll_workers_and_collect_errors(self, timeout: float | None) -> list[WorkerStatus]:
        statuses: list[WorkerStatus] = super()._poll_workers_and_collect_errors(timeout)
        self.blocked_s += getattr(statuses[0], "blocked_s", 0.0) if statuses else 0.0
        for rank, status in enumerate(statuses):
            self.news += [(rank, item) for item in getattr(status, "news", [])]
            for number, question in getattr(status, "questions", {}).items():
                task = asyncio.get_running_loop().create_task(self._answer(rank, number, question))
                self._answering.add(task)
                task.add_done_callback(self._answering.discard)
            if not status.running and status.error is None and rank not in self._ended:
                # used as its answer until all have ended; its news and blocked time must count only once
                self._ended[rank] = ray.put(replace(status, news=[], blocked_s=0.0))
        return statuses

    async def _answer(self, rank: int, number: int, question: tuple[Any, ...]) -> None:
        try:
            answer: Any = await self._registered.get_all_reported_checkpoints(*question)
        except Exception as exc:  # noqa: BLE001 - raised where it was asked
            answer = exc
        self._answers.setdefault(rank, {})[number] = answer


class _Controller(TrainController):
    worker_group_cls = _WorkerGroup

    async def _poll_workers(self) -> WorkerGroupPollStatus:
        await asyncio.sleep(PAUSE_S)
        assert self._worker_group is not None
        return self._worker_group.poll_status()


def run_controller_here(trainer: DataParallelTrainer, mask: Callable[[str], str]) -> None:
    """Make `trainer.fit()` run the controller in the thread that calls it. Ray Train's logs here go through `mask`."""

    async def control(given: dict[str, Any]) -> Any:
        # the callbacks stay here; the workers get a copy of the configuration
        trainer.run_config.callbacks = []
        controller = _Controller(**given)
        for handler in logging.getLogger("ray.train").handlers:
            handler.addFilter(_Mask(mask))
        await controller.run()
        return controller.get_result()

    trainer._initialize_and_run_controller = lambda **given: asyncio.run(control(given))


class _Mask(logging.Filter):
    def __init__(self, mask: Callable[[str], str]):
        super().__init__()
        self._mask = mask

    def filter(self, record: logging.LogRecord) -> bool:
        said = record.getMessage()
        if record.exc_info and record.exc_info[0] is not None:
            said += "\n" + "".join(traceback.format_exception(*record.exc_info)).rstrip()
        record.msg, record.args, record.exc_info, record.exc_text = self._mask(said), None, None, None
        return True
