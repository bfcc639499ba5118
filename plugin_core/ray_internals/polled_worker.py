"""A Ray Train worker whose controller is not an actor: it answers a poll once there is news, and asks in its answers.

Ray's own worker answers at once, so its controller polls ten times a second to make `report()` return soon. This one
holds the poll until its loop reports, raises, ends or asks. While a report waits to be registered, polls are short.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.train import CheckpointConsistencyMode
from ray.train.v2._internal.execution.context import get_train_context
from ray.train.v2._internal.execution.worker_group.poll import WorkerStatus
from ray.train.v2._internal.execution.worker_group.worker import RayTrainWorker as _RayTrainWorker

#: Seconds after which a poll is answered without news. Until then the worker handles no other call, such as a shutdown,
#: so this is short. One controller reads the answers of all workers, so the time grows with their number.
ASK_S, ASK_S_PER_WORKER = 0.5, 0.005
#: While a report waits, a poll is answered after this fraction of that time, plus this fraction of how long it has
#: waited.
WAITING, WAITED = 0.01, 0.1


def ask_s(workers: int) -> float:
    return max(ASK_S, ASK_S_PER_WORKER * workers)


@dataclass
class Status(WorkerStatus):
    """A worker's answer. `questions`: number → the arguments of a call of `get_all_reported_checkpoints`. `blocked_s`:
    seconds that reports with a checkpoint blocked its loop since the last answer. `moves`: whether its loop has made
    progress since then, or is uploading a checkpoint. `oom_kills`: how many processes around it the kernel had killed
    for lack of memory when it began (see `oom.kills`). `news`: what the worker has sent since then (see `tell`)."""

    questions: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    blocked_s: float = 0.0
    moves: bool = False
    oom_kills: int | None = None
    news: list[Any] = field(default_factory=list)


class Controller:
    """What a worker has instead of the controller's actor handle: it hears from the controller with each poll."""

    def __init__(self, news: threading.Condition):
        self._news = news
        self._heard = threading.Condition()
        self._registered = 0
        self._numbers = itertools.count()
        self._asked: dict[int, tuple[Any, ...]] = {}
        self._answers: dict[int, Any] = {}
        self._waiting: dict[int, float] = {}
        self.is_asking = False
        self._blocked_s = 0.0
        self._moved, self._uploads = False, 0
        self._news_to_tell: list[Any] = []
        self.oom_kills: int | None = None

    # ---- for the train function's threads

    @property
    def get_all_reported_checkpoints(self) -> Controller:
        """Called like an actor handle's method: `get_all_reported_checkpoints.remote(…)`."""
        return self

    def remote(self, report_index: int, mode: CheckpointConsistencyMode, timeout_s: float | None) -> ray.ObjectRef:
        number = next(self._numbers)
        with self._heard:
            self._asked[number] = (report_index, mode, timeout_s)
            self._wait(number, lambda: number in self._answers)
            answer = self._answers.pop(number)
        if isinstance(answer, Exception):
            raise answer
        return ray.put(answer)

    def wait_for(self, report_index: int) -> None:
        """Wait until `report_index` reports are registered."""
        with self._heard:
            self._wait(next(self._numbers), lambda: self._registered >= report_index)

    def was_blocked(self, seconds: float) -> None:
        """Note that a report blocked the loop."""
        with self._heard:
            self._blocked_s += seconds

    def made_progress(self) -> None:
        self._moved = True

    def tell(self, item: Any, at_once: bool) -> None:
        with self._heard:
            self._news_to_tell.append(item)
        if at_once:
            self._wake()

    @contextlib.contextmanager
    def uploading(self) -> Iterator[None]:
        with self._heard:
            self._uploads += 1
        try:
            yield
        finally:
            with self._heard:
                self._uploads -= 1
                self._moved = True

    def _wait(self, number: int, over: Any) -> None:
        if over():
            return
        self._waiting[number] = time.monotonic()
        self._wake()
        self._heard.wait_for(over)
        del self._waiting[number]

    def _wake(self) -> None:
        with self._news:
            self.is_asking = True
            self._news.notify_all()

    # ---- for the polls

    def hear(self, registered: int, answers: dict[int, Any]) -> None:
        with self._heard:
            self._registered = registered
            self._answers.update(answers)
            self._heard.notify_all()

    def questions(self) -> dict[int, tuple[Any, ...]]:
        """The questions not sent yet."""
        with self._heard:
            self.is_asking = False
            told, self._asked = self._asked, {}
            return told

    def blocked_s(self) -> float:
        """The seconds not sent yet."""
        with self._heard:
            told, self._blocked_s = self._blocked_s, 0.0
            return told

    def take_news(self) -> list[Any]:
        """The news not sent yet."""
        with self._heard:
            told, self._news_to_tell = self._news_to_tell, []
            return told

    def moves(self) -> bool:
        moved, self._moved = self._moved, False
        return moved or self._uploads > 0

    def patience_s(self, longest: float) -> float:
        """Seconds to wait for news: only a few while somebody waits for the controller."""
        with self._heard:
            if not self._waiting:
                return longest
            return min(longest, WAITING * longest + WAITED * (time.monotonic() - min(self._waiting.values())))


class RayTrainWorker(_RayTrainWorker):
    """Has the same name as its base class, because people know it from Ray's dashboard and logs."""

    _told = (True, False, False)

    def init_train_context(self, **given: Any) -> None:
        super().init_train_context(**given)
        context = get_train_context()
        # a queue notifies one of its waiters when something is put; only the poll waits for this
        self._news = context.execution_context.result_queue.not_empty
        self._controller = context.controller_actor = Controller(self._news)

    def run_train_fn(self, train_fn_ref: Any) -> None:
        super().run_train_fn(train_fn_ref)
        threading.Thread(target=self._notice_ends, daemon=True, name="ends").start()

    def _notice_ends(self) -> None:
        """The monitor's thread ends when any thread raises, the other one when the function ends."""
        runner = get_train_context().execution_context.training_thread_runner
        for thread in (runner._monitor_thread, runner._thread):
            thread.join()
            with self._news:
                self._news.notify_all()

    def poll_status(self, registered: int, answers: dict[int, Any]) -> Status:
        """Wait for news. `registered`: how many reports the controller has registered; `answers`: see `Status`."""
        self._controller.hear(registered, answers)
        patience = self._controller.patience_s(ask_s(get_train_context().get_world_size()))
        with self._news:
            self._news.wait_for(self._has_news, patience)
        status = super().poll_status()
        # Ray before 2.58 gives no preemption notice
        noticed = getattr(status, "preemption_info", None) is not None
        self._told = (status.running, status.error is not None, noticed)
        return Status(
            **vars(status),
            questions=self._controller.questions(),
            blocked_s=self._controller.blocked_s(),
            moves=self._controller.moves(),
            oom_kills=self._controller.oom_kills,
            news=self._controller.take_news(),
        )

    def _has_news(self) -> bool:
        context = get_train_context()
        runner = context.execution_context.training_thread_runner
        noticed = getattr(getattr(context, "preemption_context", None), "preemption_info", None) is not None
        state = (runner.is_running(), runner.get_error() is not None, noticed)
        return bool(context.execution_context.result_queue.queue) or self._controller.is_asking or state != self._told


def was_blocked(context: Any, seconds: float) -> None:
    """Tell the controller, if it is in the driver, that a report blocked this worker's loop. `context`: see
    `worker.worker_context`."""
    if isinstance(context.controller_actor, Controller):
        context.controller_actor.was_blocked(seconds)


def began_with(context: Any, oom_kills: int | None) -> None:
    """Tell the controller, if it is in the driver, how many processes the kernel had killed for lack of memory when
    this worker began. `context`: see `worker.worker_context`."""
    if isinstance(context.controller_actor, Controller):
        context.controller_actor.oom_kills = oom_kills


def tell(context: Any, item: Any, *, at_once: bool = True) -> None:
    """Send something picklable to the controller in the driver. `controller.take_news` returns it, before the
    controller hears of any later report of this worker. `at_once`: False if such a report follows now: one answer then
    carries both. `context`: see `worker.worker_context`."""
    context.controller_actor.tell(item, at_once)


def made_progress() -> None:
    """Tell the controller, if it is in the driver, that this worker's loop progresses. Does nothing outside a
    worker."""
    try:
        controller = get_train_context().controller_actor
    except RuntimeError:
        return
    if isinstance(controller, Controller):
        controller.made_progress()


def uploading(context: Any) -> contextlib.AbstractContextManager[None]:
    """While this worker uploads a checkpoint, it counts as making progress. `context`: see `worker.worker_context`."""
    controller = context.controller_actor
    return controller.uploading() if isinstance(controller, Controller) else contextlib.nullcontext()


def wait_until_registered(context: Any) -> None:
    """Wait until the controller has registered all reports of this worker: a kill no longer loses them. `context`: see
    `worker.worker_context`."""
    if isinstance(context.controller_actor, Controller):
        context.controller_actor.wait_for(context.report_call_index)
    else:
        ray.train.get_all_reported_checkpoints(CheckpointConsistencyMode.COMMITTED)
