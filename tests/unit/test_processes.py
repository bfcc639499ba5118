"""Ending processes, and waiting for it, while the kernel says that one of them is gone."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import psutil
import pytest

from plugin_core.clusters.processes import end_processes, wait_for_end

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pidfd_open is Linux's")

SLEEPS = "import time; time.sleep(600)"
REFUSES = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"


@pytest.fixture
def start() -> Iterator[Callable[[str], psutil.Process]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(code: str) -> psutil.Process:
        started.append(subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE))
        if code == REFUSES:
            stream = started[-1].stdout
            assert stream is not None
            stream.readline()
        return psutil.Process(started[-1].pid)

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int, int], None]:
    """A fake of the kernel's race, which lasts for microseconds: `pidfd_open` of a process fails the first times."""
    real = os.pidfd_open

    def says(number: int, pid: int, times: int) -> None:
        left = [times]

        def pidfd_open(asked: int, flags: int = 0) -> int:
            if asked == pid and left[0]:
                left[0] -= 1
                raise OSError(number, os.strerror(number))
            return real(asked, flags)

        monkeypatch.setattr(os, "pidfd_open", pidfd_open)

    return says


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOENT])
def test_one_that_ends_at_this_moment_does_not_keep_the_others_alive(
    start: Callable[[str], psutil.Process], kernel: Callable[[int, int, int], None], number: int
) -> None:
    processes = [start(SLEEPS), start(REFUSES)]
    kernel(number, processes[0].pid, 2)
    end_processes(processes, grace_s=0.5)
    assert [process.is_running() for process in processes] == [False, False]


def test_those_still_alive_after_the_time_are_returned(
    start: Callable[[str], psutil.Process], kernel: Callable[[int, int, int], None]
) -> None:
    ended, lives = start("pass"), start(SLEEPS)
    ended.wait(60)
    kernel(errno.ENOENT, lives.pid, 10**9)
    assert wait_for_end([ended, lives], 0.5) == [lives]


def test_another_error_is_raised(start: Callable[[str], psutil.Process], kernel: Callable[[int, int, int], None]) -> None:
    process = start(SLEEPS)
    kernel(errno.EPERM, process.pid, 1)
    with pytest.raises(psutil.AccessDenied):
        wait_for_end([process], 0.5)
