"""The rest of a job's log as the run directory keeps it, for a reader that its cluster can no longer serve."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from plugin_core.runs.directory import RunDir
from plugin_core.runs.kept_log import DRIVER, KeptLog
from plugin_core.storage.threads import Threads
from plugin_core.supervisor.job_log import SHOWN


@dataclass(frozen=True)
class Rest:
    """The last `SHOWN` characters of text at most, and the position after them."""

    text: str
    position: int


async def rest_of(rundir: RunDir, attempt: int, position: int) -> Rest | None:
    """What follows a position (in characters, as `JobLog` counts them); None if no log is kept. Raises StorageError."""
    threads = Threads.of(rundir.uri)
    log = KeptLog(rundir, attempt, DRIVER, position)
    text, size = "", 0
    while new := await threads(log.read):
        text = (text + new)[-SHOWN:]
        size += len(new)
    if log.position == 0:
        return None
    if size > SHOWN:
        begin = text.find("\n") + 1
        dropped = (size - SHOWN + begin) / 1e6
        all_of_it = f"`raytrain logs {shlex.quote(rundir.uri)}` has all"
        text = f"… {dropped:.1f} MB of the log not shown; {all_of_it}\n{text[begin:]}"
    return Rest(text, log.position)
