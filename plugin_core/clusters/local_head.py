"""The embedded local cluster: one Ray head per user and Python environment, owned by a keeper process.

The keeper (`plugin_core.clusters.local_head_keeper`) runs `ray start --head --block` on loopback with its own ports, temp
dir and token, and stops it when no job has run for the idle timeout. It never touches another Ray on the machine: it ends
only processes with the head's mark in their environment, or that Ray started in the keeper's session.

Hosts and containers may share a home directory. Each has its own folder there, because a head can be reached, and its
processes seen, only from its own host or container. Others can only tell whether a head is gone: its keeper locks a file.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import shlex
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
from plugin_core.clusters.processes import end_processes
from plugin_core.errors import ClusterUnreachableError, SpecError
from plugin_core.storage.ownership import check_private, is_ours
from plugin_core.storage.stored_files import parse

T = TypeVar("T")

#: Ends only a start that hangs: one that fails is noticed at once. The first start in a new environment, on two cores that
#: were busy with other work, took 92 s to import Ray.
START_TIMEOUT_S = 300.0
#: Ray's message when its raylet has not registered within 30 s, a fixed limit (`ray._private.node`). A busy machine
#: takes longer the first time, when none of Ray's files are in memory yet.
RAYLET_IS_LATE = "node timed out during startup"
MARK = "RAYTRAIN_LOCAL_HEAD"
#: The prefix of a head's temporary folder.
TEMP_PREFIX = "rtw-"
#: The file that the keeper locks while it lives, and the file that describes its machine.
ALIVE, PLACE = "alive", "place.json"
_IDENTITY = "local head of "
#: Seconds between SIGTERM and SIGKILL for Ray's processes; a single-machine head has nothing to hand over.
GRACE_S = 2.0
#: The fewest CPUs advertised, so that two one-CPU workers and Ray Data fit on a two-core machine.
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
        """All processes of the head except the keeper."""
        return marked_processes(self.mark, self.keeper_pid)


class Left(TypedDict):
    """The part of a head's state needed to end it; nothing else exists while the head is starting."""

    mark: str
    keeper_pid: int
    temp_dir: str


def state_dir() -> Path:
    """The owner-only folder of this user's and environment's head on this machine (`RAYTRAIN_HOME` moves it).
    Raises SpecError if that is not an absolute path, or if another user can write there."""
    home = Path(os.environ.get("RAYTRAIN_HOME") or Path.home() / ".raytrain")
    if not home.is_absolute():  # processes in other folders would each have a head
        raise SpecError(f"RAYTRAIN_HOME: got {str(home)!r}; expected an absolute path")
    whose = hashlib.sha256(f"{os.geteuid()} {sys.prefix}".encode()).hexdigest()[:8]
    path = home / f"head-{whose}-{machine.key()}"
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    check_private(path)
    return path


def identity() -> str:
    """The identity of the head that this process would use."""
    return f"{_IDENTITY}{socket.gethostname()}:{state_dir()}"


def host_of(identity: str) -> str:
    """The host of an embedded head; "" if the identity is another kind of cluster's."""
    return identity.removeprefix(_IDENTITY).partition(":")[0] if identity.startswith(_IDENTITY) else ""


def how_to_open(identity: str, run: str) -> str:
    """How to open the page of a run's job, which asks for the head's token; "" for another kind of cluster."""
    return f"`raytrain cluster open {shlex.quote(run)}` opens its page" if host_of(identity) else ""


def is_gone(identity: str) -> bool:
    """Whether the head of that identity is provably gone: its folder is on a volume mounted here, and its keeper died on
    this kernel or this machine has rebooted since."""
    return bool(host_of(identity)) and _is_dead(Path(identity.removeprefix(_IDENTITY).partition(":")[2]))


def _is_dead(folder: Path) -> bool:
    try:
        place = json.loads((folder / PLACE).read_text())
        if place["boot"] != machine.boot():
            # a lock held on another kernel may be invisible here
            return bool(machine.installation()) and place == {**here(), "boot": place["boot"]}
        return not _is_locked(folder)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _is_locked(folder: Path) -> bool:
    """Whether a keeper on this kernel holds the folder's lock. Raises OSError if there is no lock file."""
    import fcntl

    with (folder / ALIVE).open("r+") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def here() -> dict[str, str]:
    """The description of its machine that the keeper publishes."""
    return {"host": socket.gethostname(), "machine": machine.installation(), "boot": machine.boot()}


def current() -> Head | None:
    """The running head, or None."""
    try:
        head = _read(Head, state_dir() / "state.json")
    except FileNotFoundError:
        return None
    return head if machine.started(head.keeper_pid) == head.keeper_started else None


def _read(kind: type[T], file: Path) -> T:
    """Read one of the head's files. It must belong to us, because it decides where our token is sent and what is ended
    and deleted. Raises StorageError if it is damaged."""
    check_private(file.parent)
    check_private(file)
    return parse(kind, file.read_bytes(), f"{file} (delete it if no head is running)")


def ensure(
    num_cpus: int | None = None,
    num_gpus: int | None = None,
    idle_timeout_s: float = 300.0,
    preload: bool = True,
    full_dashboard: bool = False,
) -> Head:
    """The running head, started if there is none. Blocks. Raises ClusterUnreachableError if the start fails, SpecError
    if Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise SpecError(
            "cluster: got the embedded Ray head, and Ray is not installed here; pip install 'ray[default,data,train]', or"
            " give the cluster to run on"
        )
    folder = state_dir()
    switches = [name for name, given in {"preload": preload, "full_dashboard": full_dashboard}.items() if given]
    with FileLock(folder / "lock"):
        head = _without_starter(folder)
        if head is None:
            for left in folder.parent.glob(folder.name.rpartition("-")[0] + "-*"):
                if left == folder or (left.lstat().st_uid == os.geteuid() and _is_dead(left)):
                    _clear_stale(left)
            head = _start(folder, _keeper_command(folder, num_cpus, num_gpus, idle_timeout_s, switches))
        (folder / "last_used").touch()
        return head


def stop() -> bool:
    """Stop the head and all its processes; returns False if there was no head."""
    folder = state_dir()
    with FileLock(folder / "lock"):
        head = current()
        with contextlib.suppress(psutil.NoSuchProcess):  # its time was over
            if head is not None:
                end_processes([psutil.Process(head.keeper_pid)])
        _clear_stale(folder)
        return head is not None


def end_leftovers() -> None:
    """End all processes of a head whose keeper is dead. If another head is running, `ensure` already did that."""
    folder = state_dir()
    if current() is None:
        with FileLock(folder / "lock"):
            if current() is None:
                _clear_stale(folder)


def _without_starter(folder: Path) -> Head | None:
    """The running head. One whose starter was killed is waited for: two keepers would take over each other's files."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while (head := current()) is None and _has_keeper(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    return head


def _has_keeper(folder: Path) -> bool:
    try:
        return _is_locked(folder)
    except FileNotFoundError:
        return False


def _start(folder: Path, command: list[str]) -> Head:
    deadline = time.monotonic() + START_TIMEOUT_S
    log = folder / "head.log"
    while True:
        keeper = _start_keeper(command, log)
        while keeper.poll() is None and time.monotonic() < deadline:
            if (folder / "state.json").exists():
                head = current()
                if head is not None and head.keeper_pid == keeper.pid:
                    return head
            time.sleep(0.1)
        in_time = ""
        if keeper.poll() is None:
            in_time = f" within {START_TIMEOUT_S:g} s: this machine is busy, or something holds it up"
            end_processes([psutil.Process(keeper.pid)])
        _clear_stale(folder)
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        if RAYLET_IS_LATE not in tail or time.monotonic() > deadline:
            said = f"{log} ends with:\n{tail}" if tail else f"{log} is empty"
            raise ClusterUnreachableError(f"cluster: the local Ray head did not start{in_time}; {said}")


def _keeper_command(
    folder: Path, num_cpus: int | None, num_gpus: int | None, idle_timeout_s: float, switches: list[str]
) -> list[str]:
    command = [sys.executable, "-m", "plugin_core.clusters.local_head_keeper", str(folder), str(idle_timeout_s)]
    command += [str(num_cpus or max(os.cpu_count() or 1, MIN_CPUS)), "" if num_gpus is None else str(num_gpus)]
    return [*command, str(os.getpid()), *switches]


def _start_keeper(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as stream:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("RAY_", "AIRFLOW__"))}
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
            env=environment,
            cwd=log.parent,
        )


def _clear_stale(folder: Path) -> None:
    """End and remove everything that a killed keeper left behind."""
    for name in ("state.json", "starting.json"):
        file = folder / name
        if file.exists():
            left = _read(Left, file)
            # the keeper's pid may have been reused
            sessions = [left["keeper_pid"]] if machine.started(left["keeper_pid"]) is None else []
            end_head(left["mark"], *sessions)
            if is_ours(Path(left["temp_dir"]), TEMP_PREFIX):
                shutil.rmtree(left["temp_dir"], ignore_errors=True)
            file.unlink()


def marked_processes(mark: str, *sessions: int, variable: str = MARK) -> list[psutil.Process]:
    """The processes with this mark in that variable. Ray's agents overwrite their environment, including the mark, with
    their title (and outlive their raylet by minutes), so they are recognised by the session they were started in."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            title = "".join(process.cmdline()[:1])
            agent = title.startswith(("ray::", "ray-")) and os.getsid(process.pid) in sessions
            if agent or process.environ().get(variable) == mark:
                found.append(process)
        except (psutil.Error, ProcessLookupError):
            continue
    return found


def end_head(mark: str, *sessions: int) -> None:
    """End all processes of a head, including any that they start in the meantime."""
    for _ in range(5):
        if left := marked_processes(mark, *sessions):
            end_processes(left, GRACE_S)
