"""Kept logs, written and read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from plugin_core.driver.log_keeper import LogKeeper
from plugin_core.runs.directory import RunDir
from plugin_core.runs.kept_log import DRIVER, KeptLog, log_folder
from plugin_core.storage.location import Location


def folder_of(rundir: RunDir, attempt: int = 1, whose: str = DRIVER) -> Location:
    return log_folder(rundir, attempt, whose)


@contextlib.contextmanager
def keep(
    rundir: RunDir, printed: Path, attempt: int = 1, whose: str = DRIVER, mask: Callable[[str], str] = str
) -> Iterator[LogKeeper]:
    keeper = LogKeeper(folder_of(rundir, attempt, whose), [str(printed)], mask)
    yield keeper
    keeper.close()


def keep_text(rundir: RunDir, text: str, attempt: int = 1, whose: str = DRIVER) -> None:
    """A log as a process leaves it behind."""
    folder_of(rundir, attempt, whose).child("0000000000001-000000000000.log").write(text.encode())


def everything(rundir: RunDir, attempt: int = 1, whose: str = DRIVER, position: int = 0) -> str:
    log = KeptLog(rundir, attempt, whose, position)
    return "".join(iter(log.read, ""))
