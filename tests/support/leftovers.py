"""Ends what an interrupted suite leaves behind: on Ctrl-C, pytest-xdist ends its workers before their teardowns."""

import contextlib
import os

import psutil

from devtools.servers import command_of, variable_of
from plugin_core.clusters.processes import end_processes

#: A variable of the environment that only the processes of one suite have.
MARK = "TEST_SUITE_MARK"


def end_leftovers(mark: str) -> list[str]:
    """End the processes that were started with this mark, and any that they start in the meantime; returns their names."""
    names: list[str] = []
    sessions: set[int] = set()
    for _ in range(5):
        left = [process for process in psutil.process_iter() if variable_of(process, MARK) == mark]
        sessions |= {_session(process) for process in left} - {os.getsid(0), 0}
        left += [process for process in psutil.process_iter() if _session(process) in sessions and _is_ray(process)]
        if not left:
            break
        names += [" ".join(command_of(process))[:100] for process in left]
        end_processes(left)
    return names


def _session(process: psutil.Process) -> int:
    with contextlib.suppress(ProcessLookupError):
        return os.getsid(process.pid)
    return 0


def _is_ray(process: psutil.Process) -> bool:
    """Ray's processes write their title over their environment."""
    return "".join(command_of(process)[:1]).startswith(("ray::", "ray-"))
