"""`python -m plugin_core.driver.ray_job.guard STATUS PROGRAM ARGUMENTS...`: the parent of a command's process.

It ends all processes that the command started, including those that left their parents or sessions, when the command
ends or when its own standard input closes, because its caller has died, killed or not. It writes the command's exit
code to the file descriptor STATUS. The process that the caller started forks and exits at once: Ray kills the children
of a dying worker (ray 2.60), and would kill this process before it can end the others.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading

import psutil

from plugin_core.clusters.processes import wait_for_end
from plugin_core.ray_internals.fork_server import die_with_parent

#: A shell's exit codes for a program that it does not find, and for one that it may not run.
NOT_FOUND, NOT_ALLOWED = 127, 126
#: prctl(2) on Linux.
_PR_SET_CHILD_SUBREAPER = 36


def main(arguments: list[str]) -> int:
    """Returns the command's exit code or, if a signal killed it, 128 plus the signal's number, as a shell does."""
    if sys.platform == "linux":
        # orphans of the command become children of this process, and can be found
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        command = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_follow)
    except OSError as exc:
        print(f"command: {arguments[0]} cannot be started: {exc.strerror}", file=sys.stderr)
        return NOT_FOUND if isinstance(exc, FileNotFoundError) else NOT_ALLOWED
    threading.Thread(target=_watch, args=(command.pid,), daemon=True).start()
    code = command.wait()
    end_all()
    return code if code >= 0 else 128 - code


def _follow() -> None:
    """Called in the command's process before it begins: if this process is killed, that one is too."""
    if sys.platform == "linux":
        die_with_parent(signal.SIGKILL)


def _watch(command: int) -> None:
    while os.read(0, 1 << 16):
        pass
    with contextlib.suppress(ProcessLookupError):
        os.killpg(command, signal.SIGKILL)  # at once; those that left its session take a moment to find
    end_all()
    os._exit(128 + signal.SIGKILL)


def end_all() -> None:
    """Kill what this process and its descendants started, until nothing is left."""
    while left := psutil.Process().children(recursive=True):
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass
        wait_for_end(left, 1.0)


if __name__ == "__main__":
    if os.fork():
        os._exit(0)
    os.setsid()
    os.write(int(sys.argv[1]), str(main(sys.argv[2:])).encode())
