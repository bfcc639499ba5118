"""Identify this process's machine, boot and container, the scope of process ids and loopback."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

#: The number of Linux's initial PID namespace; any other one is a container's.
_NO_CONTAINER = "pid:[4026531836]"


def key() -> str:
    """Equal for two processes that share pids and loopback; differs after a reboot and in each container."""
    found = [socket.gethostname(), boot(), _namespace("pid"), _namespace("net")]
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()[:8]


@lru_cache(maxsize=1)
def boot() -> str:
    """The kernel's boot id; "" if there is none."""
    if sys.platform == "darwin":
        command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return _content("/proc/sys/kernel/random/boot_id")


@lru_cache(maxsize=1)
def installation() -> str:
    """This machine's id, which survives reboots; "" in a container, where it would be the image's."""
    if sys.platform == "darwin":
        command = ["/usr/sbin/sysctl", "-n", "kern.uuid"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return _content("/etc/machine-id") if _namespace("pid") == _NO_CONTAINER else ""


def started(pid: int) -> float | None:
    """A process's start time, independent of clock changes; None if there is no such process or it is a zombie."""
    if sys.platform == "linux":
        # psutil would add the boot time, which depends on the current clock, to this number of ticks
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
