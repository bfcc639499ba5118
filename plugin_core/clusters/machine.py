"""Where this process is: the machine, its boot and the container in which process ids and loopback mean something."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

#: Linux gives the first PID namespace of a boot this number; any other one is a container's.
_NO_CONTAINER = "pid:[4026531836]"


def key() -> str:
    """Equal for two processes that see each other's ids and loopback; another one after a reboot, and in each container."""
    found = [socket.gethostname(), boot(), _namespace("pid"), _namespace("net")]
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()[:8]


@lru_cache(maxsize=1)
def boot() -> str:
    """The id of this boot of the kernel; "" where there is none."""
    if sys.platform == "darwin":
        command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return _content("/proc/sys/kernel/random/boot_id")


@lru_cache(maxsize=1)
def installation() -> str:
    """The id of this machine, the same after a reboot; "" in a container, where it is that of an image."""
    if sys.platform == "darwin":
        command = ["/usr/sbin/sysctl", "-n", "kern.uuid"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return _content("/etc/machine-id") if _namespace("pid") == _NO_CONTAINER else ""


def started(pid: int) -> float | None:
    """When a process began, as a number that stays when the clock is set; None where there is none (a zombie is none)."""
    if sys.platform == "linux":
        # psutil adds the time of the boot by today's clock to this number of ticks
        state, *fields = _content(f"/proc/{pid}/stat").rpartition(")")[2].split() or ["Z"]
        return None if state in "ZX" else float(fields[18])
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except psutil.NoSuchProcess:
        return None


def _namespace(kind: str) -> str:
    try:
        return os.readlink(f"/proc/self/ns/{kind}")
    except OSError:
        return ""


def _content(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""
