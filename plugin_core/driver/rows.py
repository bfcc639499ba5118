"""Records in the run's journal how many rows of a dataset are done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from plugin_core.runs.journal import JournalWriter

if TYPE_CHECKING:
    from plugin_core.runs.context import StepContext


@contextmanager
def rows_in_journal(context: StepContext, phase: str) -> Iterator[Callable[[int], None]]:
    """Yields a function that records their number. For a part of a retraining, that is in the retraining's journal."""
    journal = JournalWriter(context.rundir.outermost, context.attempt)
    try:
        yield lambda rows: journal.append({"phase": phase, "rows": rows})
    finally:
        journal.close()
