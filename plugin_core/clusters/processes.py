"""End processes of this machine, and wait for their end."""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Iterable

import psutil

#: What the kernel says of a process id whose process ends at this moment, or that a thread has taken over since.
_GONE = (errno.EINVAL, errno.ENOENT)


def wait_for_end(processes: Iterable[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Wait until all have ended; returns those that are still alive after `timeout_s` seconds.

    `psutil.wait_procs` (7.2) does the waiting, but raises an OSError or NoSuchProcess for one that is just ending
    (https://github.com/giampaolo/psutil/issues/2715) or if a new thread already has its id.
    """
    deadline = time.monotonic() + timeout_s
    left = list(processes)
    while True:
        try:
            return psutil.wait_procs(left, timeout=max(0.0, deadline - time.monotonic()))[1]
        except psutil.NoSuchProcess:  # a zombie too
            pass
        except OSError as exc:
            if exc.errno not in _GONE:
                raise
        left = [process for process in left if process.is_running()]
        if time.monotonic() > deadline:
            return left
        time.sleep(0.01)


def end_processes(processes: list[psutil.Process], grace_s: float = 20.0) -> None:
    """Terminate them, and kill those that live on for `grace_s` seconds."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    alive = wait_for_end(processes, grace_s)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    wait_for_end(alive, 10.0)
