"""The embedded local cluster: one Ray head per user and Python environment, owned by a keeper process.

The keeper (`plugin_core.clusters.local_head_keeper`) starts `ray start --head --block` on loopback with ports, temp dir and
token of its own, and stops it when no job has run for the idle timeout. It never touches another Ray on the machine:
only processes that carry the head's mark in their environment, or that Ray started in the keeper's session, are ended.

A home may be shared by hosts and containers. Each has a folder of its own there, since a head can be reached, and its
processes be seen, from nowhere else. What the others may learn is that a head is gone: its keeper locks a file.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil
from filelock import FileLock
from typing_extensions import TypedDict

from plugin_core.clusters import machine
from plugin_core.errors import ClusterUnreachableError
from plugin_core.storage.ownership import check_private, is_ours
from plugin_core.storage.stored_files import parse

T = TypeVar("T")

START_TIMEOUT_S = 120.0
MARK = "RAYTRAIN_LOCAL_HEAD"
#: The beginning of a head's temporary folder's name.
TEMP_PREFIX = "rtw-"
#: What the keeper locks for its life, and what it says of the place that it lives in.
ALIVE, PLACE = "alive", "place.json"
_IDENTITY = "local head of "
#: Seconds that Ray's processes get after SIGTERM; a head of one machine has nothing to hand over.
GRACE_S = 2.0
#: Advertised at the least, so that two one-CPU workers and Ray Data fit on a two-core machine.
MIN_CPUS = 4


@dataclass(frozen=True)
class Head:
    address: str
    token: str
    mark: str
    keeper_pid: int
    keeper_started: float
    temp_dir: str
    num_cpus: int
    idle_timeout_s: float

    def processes(self) -> list[psutil.Process]:
        """All of the head's, but the keeper."""
        return marked_processes(self.mark, self.keeper_pid)


class Left(TypedDict):
    """What of a head's state says what to end; the state of one that starts has no more."""

    mark: str
    keeper_pid: int
    temp_dir: str


def state_dir() -> Path:
    """Owner-only folder of the head of this user and environment, here (`RAYTRAIN_HOME` moves it)."""
    home = Path(os.environ.get("RAYTRAIN_HOME") or Path.home() / ".raytrain")
    whose = hashlib.sha256(f"{os.geteuid()} {sys.prefix}".encode()).hexdigest()[:8]
    path = home / f"head-{whose}-{machine.key()}"
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    check_private(path)
    return path


def identity() -> str:
    """Of the head that this process would use."""
    return f"{_IDENTITY}{socket.gethostname()}:{state_dir()}"


def host_of(identity: str) -> str:
    """The host that an embedded head is on; "" where the identity is that of another cluster."""
    return identity.removeprefix(_IDENTITY).partition(":")[0] if identity.startswith(_IDENTITY) else ""


def is_gone(identity: str) -> bool:
    """Whether the head of that identity is proven to be gone: its folder is on a volume that is here too, and its keeper
    died on this kernel, or this machine was started anew since."""
    return bool(host_of(identity)) and _is_dead(Path(identity.removeprefix(_IDENTITY).partition(":")[2]))


def _is_dead(folder: Path) -> bool:
    import fcntl

    try:
        place = json.loads((folder / PLACE).read_text())
        if place["boot"] != machine.boot():
            # a lock of another kernel may be invisible here
            return bool(machine.installation()) and place == {**here(), "boot": place["boot"]}
        with (folder / ALIVE).open("r+") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except (OSError, ValueError, KeyError, TypeError):
        return False


def here() -> dict[str, str]:
    """What the keeper publishes of the place that it lives in."""
    return {"host": socket.gethostname(), "machine": machine.installation(), "boot": machine.boot()}


def current() -> Head | None:
    """The head that runs now, or None."""
    try:
        head = _read(Head, state_dir() / "state.json")
    except FileNotFoundError:
        return None
    return head if machine.started(head.keeper_pid) == head.keeper_started else None


def _read(kind: type[T], file: Path) -> T:
    """One of the head's files, which says where our token goes, and what is ended and deleted: nobody else's. Raises
    StorageError where it is damaged."""
    check_private(file.parent)
    check_private(file)
    return parse(kind, file.read_bytes(), f"{file} (delete it where no head runs)")


def ensure(num_cpus: int | None = None, num_gpus: int | None = None, idle_timeout_s: float = 300.0) -> Head:
    """The running head, started if there is none. Blocks; raises ClusterUnreachableError when the start fails."""
    folder = state_dir()
    with FileLock(folder / "lock"):
        head = current()
        if head is None:
            for left in folder.parent.glob(folder.name.rpartition("-")[0] + "-*"):
                if left == folder or (left.lstat().st_uid == os.geteuid() and _is_dead(left)):
                    _clear_stale(left)
            head = _start(folder, num_cpus, num_gpus, idle_timeout_s)
        (folder / "last_used").touch()
        return head


def stop() -> bool:
    """Stop the head and every process of it; False when there was none."""
    folder = state_dir()
    with FileLock(folder / "lock"):
        head = current()
        if head is not None:
            end_processes([psutil.Process(head.keeper_pid)])
        _clear_stale(folder)
        return head is not None


def _start(folder: Path, num_cpus: int | None, num_gpus: int | None, idle_timeout_s: float) -> Head:
    command = [sys.executable, "-m", "plugin_core.clusters.local_head_keeper", str(folder), str(idle_timeout_s)]
    command += [str(num_cpus or max(os.cpu_count() or 1, MIN_CPUS)), "" if num_gpus is None else str(num_gpus)]
    log = folder / "head.log"
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as stream:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "AIRFLOW__"))}
        keeper = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
            env=environment,
            cwd=folder,
        )
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if keeper.poll() is not None:
            break
        if (folder / "state.json").exists():
            head = current()
            if head is not None and head.keeper_pid == keeper.pid:
                return head
        time.sleep(0.1)
    if keeper.poll() is None:
        end_processes([psutil.Process(keeper.pid)])
    _clear_stale(folder)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    raise ClusterUnreachableError(f"cluster: the local Ray head did not start; {log} ends with:\n{tail}")


def _clear_stale(folder: Path) -> None:
    """End what a killed keeper left behind, and forget it."""
    for name in ("state.json", "starting.json"):
        file = folder / name
        if file.exists():
            left = _read(Left, file)
            # the keeper's id may be another process's by now
            sessions = [left["keeper_pid"]] if machine.started(left["keeper_pid"]) is None else []
            end_head(left["mark"], *sessions)
            if is_ours(Path(left["temp_dir"]), TEMP_PREFIX):
                shutil.rmtree(left["temp_dir"], ignore_errors=True)
            file.unlink()


def marked_processes(mark: str, *sessions: int) -> list[psutil.Process]:
    """The processes with this mark. Ray's agents write their title over their environment, mark and all (and outlive their
    raylet for minutes): of those it is told by the session that they were started in."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            title = "".join(process.cmdline()[:1])
            agent = title.startswith(("ray::", "ray-")) and os.getsid(process.pid) in sessions
            if agent or process.environ().get(MARK) == mark:
                found.append(process)
        except (psutil.Error, ProcessLookupError):
            continue
    return found


def end_head(mark: str, *sessions: int) -> None:
    """End all of a head's processes, also those that one of them began meanwhile."""
    for _ in range(5):
        if left := marked_processes(mark, *sessions):
            end_processes(left, GRACE_S)


def end_processes(processes: list[psutil.Process], grace_s: float = 20.0) -> None:
    for process in processes:
        try:
            process.terminate()
        except psutil.NoSuchProcess:
            continue
    _, alive = psutil.wait_procs(processes, timeout=grace_s)
    for process in alive:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(alive, timeout=10)
