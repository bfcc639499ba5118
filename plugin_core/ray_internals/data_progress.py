"""How many rows an actor pool has computed so far. Ray Data tells it only in its own progress bars and log lines."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ray.data import DataContext
from ray.data._internal.execution.execution_callback import ExecutionCallback

#: Seconds between two tellings, and how much longer an execution must have taken meanwhile: a long one tells less often.
EVERY_S, GROWTH = 2.0, 1.05

logger = logging.getLogger(__name__)

#: Ray Data pickles the callback's class with its context, so what it calls is kept here, in the driver's process.
_listening: list[tuple[str, Callable[[int], None]]] = []


class Pace:
    """Says when it is time to tell again."""

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
    """Ray Data makes one for each execution. It never raises: an exception here would end the execution."""

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
                # named after its function, "MapBatches(Predict)"
                pools = [op for op in executor._topology or {} if f"({function})" in op.name]
                if pools:
                    tell(sum(op.metrics.rows_task_outputs_generated for op in pools))
            except Exception:
                logger.exception("the number of rows so far is unknown")


def begin() -> None:
    """Before the dataset is made: it keeps the context of that moment."""
    classes = DataContext.get_current().custom_execution_callback_classes
    if RowsTold not in classes:
        classes.append(RowsTold)


@contextmanager
def rows_told(function: str, tell: Callable[[int], None]) -> Iterator[None]:
    """Within it, call `tell` now and then, and when an execution succeeds, with the rows that `map_batches(function)` has
    returned."""
    _listening.append((function, tell))
    try:
        yield
    finally:
        _listening.remove((function, tell))
