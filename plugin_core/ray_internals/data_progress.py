"""How many rows an actor pool has computed so far. Ray Data shows this only in its own progress bars and log lines."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ray.data import DataContext
from ray.data._internal.execution.execution_callback import ExecutionCallback

#: Seconds between two updates, and by what factor the elapsed time must have grown: a long execution updates less
#: often.
EVERY_S, GROWTH = 2.0, 1.05

logger = logging.getLogger(__name__)

#: Ray Data pickles the callback's class with its context, so the listeners it calls stay here, in the driver's process.
_listening: list[tuple[str, Callable[[int], None]]] = []


class Pace:
    """Says when the next update is due."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._due = EVERY_S

    def is_due(self) -> bool:
        elapsed = time.monotonic() - self._began
        if elapsed < self._due:
            return False
        self._due = max(elapsed + EVERY_S, elapsed * GROWTH)
        return True


class RowsTold(ExecutionCallback):
    """Ray Data creates one per execution. It never raises: an exception here would end the execution."""

    def __init__(self) -> None:
        self._pace = Pace()

    def on_execution_step(self, executor: Any) -> None:
        if self._pace.is_due():
            self._tell(executor)

    def after_execution_succeeds(self, executor: Any) -> None:
        self._tell(executor)

    @staticmethod
    def _tell(executor: Any) -> None:
        for function, tell in _listening:
            try:
                # an operator is named after its function: "MapBatches(Predict)"
                pools = [op for op in executor._topology or {} if f"({function})" in op.name]
                if pools:
                    tell(sum(op.metrics.rows_task_outputs_generated for op in pools))
            except Exception:
                logger.exception("the number of rows so far is unknown")


def begin() -> None:
    """Call it before the dataset is created, because a dataset keeps the context of that moment."""
    classes = DataContext.get_current().custom_execution_callback_classes
    if RowsTold not in classes:
        classes.append(RowsTold)


@contextmanager
def rows_told(function: str, tell: Callable[[int], None]) -> Iterator[None]:
    """While active, call `tell` now and then, and when an execution succeeds, with the number of rows that
    `map_batches(function)` has returned."""
    _listening.append((function, tell))
    try:
        yield
    finally:
        _listening.remove((function, tell))
