"""The embedded local cluster: one Ray head per user and Python environment, owned by a keeper process.

The keeper (`python -m plugin_core.local_head`) starts `ray start --head --block` on loopback with ports, temp dir and
token of its own, and stops it when no job has run for the idle timeout. It never touches another Ray on the machine:
every process of the head carries a mark in its environment, and only marked processes are ended.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from filelock import FileLock

from plugin_core.errors import ClusterUnreachableError

START_TIMEOUT_S = 120.0
MARK = "RAYTRAIN_LOCAL_HEAD"
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


def state_dir() -> Path:
    """Owner-only folder of this user's and environment's head (`RAYTRAIN_HOME` moves it)."""
    home = Path(os.environ.get("RAYTRAIN_HOME") or Path.home() / ".raytrain")
    path = home / ("head-" + hashlib.sha256(sys.prefix.encode()).hexdigest()[:8])
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


def current() -> Head | None:
    """The head that runs now, or None."""
    try:
        head = Head(**json.loads((state_dir() / "state.json").read_text()))
    except FileNotFoundError:
        return None
    return head if _is_process(head.keeper_pid, head.keeper_started) else None


def ensure(num_cpus: int | None = None, num_gpus: int | None = None, idle_timeout_s: float = 300.0) -> Head:
    """The running head, started if there is none. Blocks; raises ClusterUnreachableError when the start fails."""
    folder = state_dir()
    with FileLock(folder / "lock"):
        head = current()
        if head is None:
            _clear_stale(folder)
            head = _start(folder, num_cpus, num_gpus, idle_timeout_s)
        (folder / "last_used").touch()
        return head


def stop() -> bool:
    """Stop the head and every process of it; False when there was none."""
    folder = state_dir()
    with FileLock(folder / "lock"):
        head = current()
        if head is not None:
            _end([psutil.Process(head.keeper_pid)])
        _clear_stale(folder)
        return head is not None


def _start(folder: Path, num_cpus: int | None, num_gpus: int | None, idle_timeout_s: float) -> Head:
    command = [sys.executable, "-m", "plugin_core.local_head", str(folder), str(idle_timeout_s)]
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
        _end([psutil.Process(keeper.pid)])
    _clear_stale(folder)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    raise ClusterUnreachableError(f"cluster: the local Ray head did not start; {log} ends with:\n{tail}")


def _clear_stale(folder: Path) -> None:
    """End what a killed keeper left behind, and forget it."""
    for name in ("state.json", "starting.json"):
        file = folder / name
        if file.exists():
            left = json.loads(file.read_text())
            _end(_marked(left["mark"]))
            shutil.rmtree(left["temp_dir"], ignore_errors=True)
            file.unlink()


def _is_process(pid: int, started: float) -> bool:
    try:
        process = psutil.Process(pid)
        return bool(process.create_time() == started and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def _end(processes: list[psutil.Process], grace_s: float = 10.0) -> None:
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


# ---- the keeper


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [int(sock.getsockname()[1]) for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()


def ray_head_command(ports: list[int], temp_dir: str, num_cpus: int, num_gpus: int | None) -> list[str]:
    """`ray start` for a head on loopback that shares nothing with another Ray of the machine; nine ports."""
    names = (
        "port",
        "dashboard-port",
        "dashboard-agent-listen-port",
        "dashboard-agent-grpc-port",
        "metrics-export-port",
        "runtime-env-agent-port",
        "ray-client-server-port",
    )
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"]
    command += ["--dashboard-host=127.0.0.1", f"--temp-dir={temp_dir}", f"--num-cpus={num_cpus}"]
    command += ["--min-worker-port=0", "--max-worker-port=0"]
    command += [f"--{name}={port}" for name, port in zip(names, ports, strict=False)]
    return command + ([f"--num-gpus={num_gpus}"] if num_gpus is not None else [])


def ray_head_environment(ports: list[int], token: str) -> dict[str, str]:
    return {
        **{key: value for key, value in os.environ.items() if not key.startswith("RAY_")},
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        # Ray's switch for laptops: every port is bound to 127.0.0.1 and nowhere else
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "AUTOSCALER_METRIC_PORT": str(ports[7]),
        "DASHBOARD_METRIC_PORT": str(ports[8]),
        "PATH": os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", ""),
    }


def _die_with_parent() -> None:
    """Linux: the head gets SIGTERM when its keeper dies, however it dies."""
    if sys.platform == "linux":
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


def keep(folder: Path, idle_timeout_s: float, num_cpus: int, num_gpus: int | None) -> int:
    """The keeper's life: start the head, publish it, watch for idleness, stop it."""
    ports, token, mark = _free_ports(9), secrets.token_hex(16), secrets.token_hex(8)
    temp_dir = tempfile.mkdtemp(prefix="rtw-", dir="/tmp" if os.path.isdir("/tmp") else None)
    _publish(folder / "starting.json", {"mark": mark, "temp_dir": temp_dir})
    environment = {**ray_head_environment(ports, token), MARK: mark}
    ray = subprocess.Popen(
        ray_head_command(ports, temp_dir, num_cpus, num_gpus),
        env=environment,
        process_group=0,
        preexec_fn=_die_with_parent,
        stdin=subprocess.DEVNULL,
    )
    stopping = False

    def request_stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, request_stop)
    signal.signal(signal.SIGINT, request_stop)
    address = f"http://127.0.0.1:{ports[1]}"
    pid = os.getpid()
    head = Head(address, token, mark, pid, psutil.Process(pid).create_time(), temp_dir, num_cpus, idle_timeout_s)
    ready = False
    last_active = time.monotonic()
    while not stopping and ray.poll() is None:
        if not ready:
            ready = bool(_get(head, "/api/v0/nodes?detail=1", _has_living_node))
            if ready:
                _publish(folder / "state.json", asdict(head))
                (folder / "starting.json").unlink(missing_ok=True)
                (folder / "last_used").touch()
            time.sleep(0.2)
            continue
        if _get(head, "/api/jobs/", _has_live_job) is not False:
            last_active = time.monotonic()
        used_ago = time.time() - (folder / "last_used").stat().st_mtime
        if min(time.monotonic() - last_active, used_ago) > idle_timeout_s:
            # under the lock nobody can be handed this head and use it in the same moment
            with FileLock(folder / "lock"):
                if time.time() - (folder / "last_used").stat().st_mtime > idle_timeout_s:
                    (folder / "state.json").unlink(missing_ok=True)
                    stopping = True
        _sleep(min(2.0, idle_timeout_s / 2), lambda: stopping or ray.poll() is not None)
    _end([psutil.Process(ray.pid)] if ray.poll() is None else [])
    _end(_marked(mark))
    shutil.rmtree(temp_dir, ignore_errors=True)
    state = folder / "state.json"
    if state.exists() and json.loads(state.read_text()).get("mark") == mark:
        state.unlink()
    (folder / "starting.json").unlink(missing_ok=True)
    return 0 if ready else 1


def _sleep(seconds: float, until: object) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not until():  # type: ignore[operator]
        time.sleep(0.1)


def _publish(file: Path, data: object) -> None:
    temporary = file.with_suffix(".tmp")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as stream:
        json.dump(data, stream)
    os.replace(temporary, file)


def _get(head: Head, path: str, judge: object) -> bool | None:
    """`judge` of the API's answer; None when there is no answer."""
    request = urllib.request.Request(head.address + path, headers={"Authorization": f"Bearer {head.token}"})
    try:
        with urllib.request.urlopen(request, timeout=5) as response:
            return bool(judge(json.load(response)))  # type: ignore[operator]
    except (OSError, ValueError):
        return None


def _has_living_node(answer: dict) -> bool:  # type: ignore[type-arg]
    nodes = (answer.get("data") or {}).get("result", {}).get("result", [])
    return any(node.get("state") == "ALIVE" for node in nodes)


def _has_live_job(answer: list) -> bool:  # type: ignore[type-arg]
    return any(job.get("status") in ("PENDING", "RUNNING") for job in answer)


if __name__ == "__main__":
    sys.exit(keep(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]) if sys.argv[4] else None))
