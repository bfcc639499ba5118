"""The keeper of the embedded local cluster: `python -m plugin_core.clusters.local_head_keeper`, started by `local_head`.

It owns one Ray head: starts it, publishes its address, and stops it when it has been idle for the idle timeout. It is a
separate process, so that the head outlives the step that started it, and is stopped even if that step still runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import asdict
from http.client import HTTPException
from pathlib import Path
from typing import Any

from filelock import FileLock

from plugin_core.clusters import machine
from plugin_core.clusters.local_head import ALIVE, MARK, PLACE, TEMP_PREFIX, Head, end_head, here
from plugin_core.errors import ClusterUnreachableError
from plugin_core.ray_internals.fork_server import die_with_parent
from plugin_core.ray_internals.forked import FEW_PAGES, SOCKET

#: Lower ports belong to well-known services; 10001 is Ray's.
LOWEST_PORT = 11_000
RAY = "ray.scripts.scripts"
#: The same, plus what the environment asks for: a fork server that starts the workers, a dashboard with few pages.
FORKING_RAY = "plugin_core.ray_internals.start_head"
#: the head is on loopback: ignore the environment's proxies
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def free_ports(count: int) -> list[int]:
    """Distinct loopback ports that are currently unused. The kernel never gives them to outgoing connections, so they
    stay free for a server that takes seconds to start."""
    ports = random.sample(range(LOWEST_PORT, _first_ephemeral_port()), 100 * count)
    found: list[int] = []
    for port in ports:
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise ClusterUnreachableError(f"cluster: no {count} free ports from {min(ports)} to {max(ports)}")


def _first_ephemeral_port() -> int:
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        first = 32768  # IANA's range begins later
    return max(first, LOWEST_PORT + 10_000)


def plain_executable(folder: str) -> str:
    """A path to this Python without spaces or quotes, through a link in `folder` if needed: Ray does not quote the path of
    its Python in the shell commands that start its processes."""
    if shlex.quote(sys.executable) == sys.executable:
        return sys.executable
    link = Path(folder, "python")
    link.symlink_to(sys.prefix)
    return str(link / Path(sys.executable).relative_to(sys.prefix))


def ray_head_command(
    ports: list[int],
    temp_dir: str,
    num_cpus: int,
    num_gpus: int | None,
    executable: str = sys.executable,
    module: str = RAY,
) -> list[str]:
    """`ray start` for a head on loopback that shares nothing with any other Ray on the machine; eight ports. `module`:
    the module that runs it."""
    names = (
        "port",
        "dashboard-port",
        "dashboard-agent-grpc-port",
        "metrics-export-port",
        "runtime-env-agent-port",
        "ray-client-server-port",
    )
    command = [executable, "-m", module, "start", "--head", "--block", "--disable-usage-stats"]
    command += ["--dashboard-host=127.0.0.1", f"--temp-dir={temp_dir}", f"--num-cpus={num_cpus}"]
    # the agent that accepts jobs binds a port of its own choice: if another process took a given one in the meantime, it
    # would run on without, and the head would start but refuse every job
    command += ["--dashboard-agent-listen-port=0", "--min-worker-port=0", "--max-worker-port=0"]
    command += [f"--{name}={port}" for name, port in zip(names, ports, strict=False)]
    return command + ([f"--num-gpus={num_gpus}"] if num_gpus is not None else [])


def ray_head_environment(ports: list[int], token: str) -> dict[str, str]:
    return {
        # milliseconds between the dashboard's measurements of all processes, which are expensive on a small machine
        "REPORTER_UPDATE_INTERVAL_MS": "20000",
        # with at least this many log files, Ray looks for new ones every 0.5 s; with fewer, ten times a second, which
        # is most of its log monitor's work
        "RAY_LOG_MONITOR_MANY_FILES_THRESHOLD": "0",
        **{key: value for key, value in os.environ.items() if not key.startswith("RAY_")},
        # prestarted workers have no runtime environment, but all our jobs do, so they would never be used
        "RAY_prestart_worker_first_driver": "0",
        "RAY_enable_worker_prestart": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        # code that looks for the machine's cluster (such as Ray Train's clean-up) must find this one
        "RAY_ADDRESS": f"127.0.0.1:{ports[0]}",
        # Ray's switch for laptops: binds every port to 127.0.0.1 only
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "AUTOSCALER_METRIC_PORT": str(ports[6]),
        "DASHBOARD_METRIC_PORT": str(ports[7]),
        "PATH": os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", ""),
    }


def knows_itself(temp_dir: str, ports: list[int]) -> bool:
    """Whether a head has written its address into its folder, the last step of its start. Until then, if another Ray
    head is on the machine, Ray sends a job's driver to that one."""
    try:
        return Path(temp_dir, "ray_current_cluster").read_text().endswith(f":{ports[0]}")
    except OSError:
        return False


def _die_with_parent() -> None:
    """On Linux, the head gets SIGTERM when its keeper dies for any reason."""
    if sys.platform == "linux":
        die_with_parent(signal.SIGTERM)


def keep(
    folder: Path,
    idle_timeout_s: float,
    num_cpus: int,
    num_gpus: int | None,
    starter: int,
    preload: bool = True,
    full_dashboard: bool = False,
) -> int:
    """The keeper's main loop: start the head, publish it, watch for idleness, stop it. `starter`: the process that started
    this one. `preload`, `full_dashboard`: see `LocalCluster`."""
    alive = (folder / ALIVE).open("a")  # stays open, and locked, until this process ends
    fcntl.flock(alive, fcntl.LOCK_SH)
    if os.getppid() != starter:
        return 1  # it was killed before this keeper could be seen, so somebody else may be starting another one
    _publish(folder / PLACE, here())
    ports, token, mark = free_ports(8), secrets.token_hex(16), secrets.token_hex(8)
    temp_dir = tempfile.mkdtemp(prefix=TEMP_PREFIX, dir="/tmp" if os.path.isdir("/tmp") else None)
    _publish(folder / "starting.json", {"mark": mark, "keeper_pid": os.getpid(), "temp_dir": temp_dir})
    # Ray makes its own folder world-readable; the folder around it stays owner-only
    ray_dir = os.path.join(temp_dir, "ray")
    # nobody drains this node, and Ray Train's watcher costs each worker group a process (1.4 CPU seconds, measured)
    environment = {"RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0", **ray_head_environment(ports, token), MARK: mark}
    executable, module = plain_executable(temp_dir), RAY
    if preload and sys.platform == "linux":  # elsewhere a process that has imported so much does not survive a fork
        module, environment[SOCKET] = FORKING_RAY, os.path.join(temp_dir, "fork")
    if not full_dashboard:
        module, environment[FEW_PAGES] = FORKING_RAY, "1"
    ray = subprocess.Popen(
        ray_head_command(ports, ray_dir, num_cpus, num_gpus, executable, module),
        env=environment,
        process_group=0,
        preexec_fn=_die_with_parent,
        stdin=subprocess.DEVNULL,
    )
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    address = f"http://127.0.0.1:{ports[1]}"
    pid = os.getpid()
    head = Head(address, token, mark, pid, machine.started(pid) or 0.0, temp_dir, num_cpus, idle_timeout_s)
    ready = False
    last_active = time.monotonic()
    used = _Used(folder / "last_used")
    while not stop.is_set() and ray.poll() is None:
        if not ready:
            ready = knows_itself(ray_dir, ports) and bool(_get(head, "/api/v0/nodes?detail=1", _has_living_node))
            if ready:
                _publish(folder / "state.json", asdict(head))
                (folder / "starting.json").unlink(missing_ok=True)
                (folder / "last_used").touch()
            stop.wait(0.2)
            continue
        if _get(head, "/api/jobs/", _has_live_job) is not False:
            last_active = time.monotonic()
        if min(time.monotonic() - last_active, used.ago_s()) > idle_timeout_s:
            # the lock prevents `ensure` from returning this head at the same time
            with FileLock(folder / "lock"):
                if used.ago_s() > idle_timeout_s:
                    # if this process is killed now, others can still find what to end
                    os.replace(folder / "state.json", folder / "starting.json")
                    stop.set()
        stop.wait(min(2.0, idle_timeout_s / 2))
    end_head(mark, os.getpid())
    ray.wait()
    shutil.rmtree(temp_dir, ignore_errors=True)
    for file in (folder / "state.json", folder / "starting.json"):
        if file.exists() and json.loads(file.read_text()).get("mark") == mark:
            file.unlink(missing_ok=True)
    return 0 if ready else 1


class _Used:
    """How long ago a file was touched, by the monotonic clock: the time since its mtime was last seen to change."""

    def __init__(self, file: Path):
        self._file = file
        self._seen = (0, time.monotonic())

    def ago_s(self) -> float:
        with contextlib.suppress(OSError):  # a cleaner may have deleted the file; a live job does not depend on it
            touched = self._file.stat().st_mtime_ns
            if touched != self._seen[0]:
                self._seen = (touched, time.monotonic())
        return time.monotonic() - self._seen[1]


def _publish(file: Path, data: object) -> None:
    temporary = file.with_suffix(".tmp")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as stream:
        json.dump(data, stream)
    os.replace(temporary, file)


def _get(head: Head, path: str, judge: Callable[[Any], bool]) -> bool | None:
    """`judge` applied to the API's response; None if there is no response."""
    request = urllib.request.Request(head.address + path, headers={"Authorization": f"Bearer {head.token}"})
    try:
        with _DIRECT.open(request, timeout=5) as response:
            return judge(json.load(response))
    except (OSError, ValueError, HTTPException):  # an answer may be cut off
        return None


def _has_living_node(answer: dict[str, Any]) -> bool:
    nodes = (answer.get("data") or {}).get("result", {}).get("result", [])
    return any(node.get("state") == "ALIVE" for node in nodes)


def _has_live_job(answer: list[dict[str, Any]]) -> bool:
    return any(job.get("status") in ("PENDING", "RUNNING") for job in answer)


if __name__ == "__main__":
    folder, idle_timeout_s, num_cpus, num_gpus, starter, *switches = sys.argv[1:]
    gpus = int(num_gpus) if num_gpus else None
    switched = {name: name in switches for name in ("preload", "full_dashboard")}
    sys.exit(keep(Path(folder), float(idle_timeout_s), int(num_cpus), gpus, int(starter), **switched))
