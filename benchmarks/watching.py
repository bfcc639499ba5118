"""What the ledger and the hang detection cost: `make bench-watching`, or `python -m benchmarks.watching [ROUNDS]`.

Both work in Ray Train's controller: at each report, and at each poll of the workers. Here the controller's callbacks get
the same reports and polls with and without them, in turn in each round; the medians count. The last column is the share
of time they take in a loop that reports ten times a second, with the controller polling at each report.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rich.console import Console
from rich.table import Table

from plugin_core.driver.train.hang_callback import HangCallback
from plugin_core.driver.train.journal_callback import JournalCallback
from plugin_core.driver.train.snapshot import RunState
from plugin_core.runs.directory import RunDir
from plugin_core.runs.ledger import Ledger
from plugin_core.specs.hang import HangDetection

REPORTS, PER_S = 20_000, 10.0
RANKS = 64


def seconds(folder: Path, *, ledger: bool, hangs: bool) -> float:
    """The seconds that the reports and polls take."""
    rundir = RunDir.at(str(folder / "run"))
    rundir.claim(1, "address", "incarnation")
    journal = JournalCallback(rundir.uri, 1, RunState())
    if ledger:
        journal.ledger = Ledger(began=time.time(), until=time.time())
    callbacks: list[Any] = [journal]
    if hangs:
        callbacks.append(HangCallback(rundir, 1, HangDetection(), journal.warn))
    report = SimpleNamespace(checkpoint=None, validation=False)
    statuses = {rank: SimpleNamespace(error=None, running=True, moves=False) for rank in range(RANKS)}
    polled = SimpleNamespace(worker_statuses=statuses, errors={}, finished=False)
    for callback in callbacks[1:]:
        callback.after_worker_group_start(range(RANKS))
        callback.after_worker_group_training_start(range(RANKS))
    began = time.process_time()
    for number in range(REPORTS):
        for callback in callbacks:
            callback.after_report(report, [{"step": number, "loss": 0.5}])
        for callback in callbacks[1:]:
            callback.after_worker_group_poll_status(polled)
    taken = time.process_time() - began
    journal.after_controller_finish(None)
    return taken


WAYS: dict[str, dict[str, bool]] = {
    "neither": {"ledger": False, "hangs": False},
    "the ledger": {"ledger": True, "hangs": False},
    "the hang detection": {"ledger": False, "hangs": True},
    "both": {"ledger": True, "hangs": True},
}


def main(rounds: int = 5) -> None:
    taken: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way, given in WAYS.items():
            with tempfile.TemporaryDirectory() as folder:
                taken[way].append(seconds(Path(folder), **given))
    plain = statistics.median(taken["neither"])
    table = Table("", "µs CPU a report", "more than without", "% of the loop", title=f"{RANKS} ranks, {rounds} rounds")
    for way, found in taken.items():
        each, more = statistics.median(found) / REPORTS, (statistics.median(found) - plain) / REPORTS
        table.add_row(way, f"{each * 1e6:.0f}", f"{more * 1e6:.0f}", f"{100 * more * PER_S:.3f}")
    Console().print(table)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
