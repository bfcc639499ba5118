"""Ends what an interrupted suite leaves behind: on Ctrl-C, pytest-xdist ends its workers before their teardowns."""

import contextlib
import os

import psutil

from devtools.servers import command_of
from plugin_core.clusters.local_head import marked_processes
from plugin_core.clusters.processes import end_processes

#: A variable of the environment that only the processes of one suite have.
MARK = "TEST_SUITE_MARK"


def end_leftovers(mark: str) -> list[str]:
    """End the processes that were started with this mark, and any that they start in the meantime; returns their names."""
    names: list[str] = []
    sessions: set[int] = set()
    for _ in range(5):
        sessions |= {_session(process) for process in marked_processes(mark, variable=MARK)} - {os.getsid(0), 0}
        left = marked_processes(mark, *sessions, variable=MARK)
        if not left:
            break
        names += [" ".join(command_of(process))[:100] for process in left]
        end_processes(left)
    return names


def _session(process: psutil.Process) -> int:
    with contextlib.suppress(ProcessLookupError):
        return os.getsid(process.pid)
    return 0
