"""Hosts on one machine: network namespaces, each with its own address on a bridge, and separate file systems.

Ray is started on them as in `example_clusters/ray_host.sh`."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Self

import psutil

from devtools.servers import S3_ENVIRONMENT, started_node
from plugin_core import RayCluster
from plugin_core.clusters.local_head import MARK, end_head

SCRIPTS = Path(__file__).parents[2] / "example_clusters"
DASHBOARD = 8265


def available() -> str:
    """Why hosts are not possible here; "" if they are."""
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        return "ip (iproute2) and unshare (util-linux) are not installed"
    if os.geteuid() != 0:
        return "network namespaces need root"
    return ""


class Hosts:
    """A Ray cluster of several hosts; the first one is its head. Each has its own address, and sees `private` as an
    empty folder of its own: what one host writes there is visible to no other host, and not to this process."""

    def __init__(self, folder: Path, count: int, num_cpus: int = 1, ray: bool = True):
        self.mark, self.token = secrets.token_hex(8), secrets.token_hex(16)
        self.private = folder / "private"
        self.private.mkdir()
        self._folder, self._name = folder, f"rt{secrets.token_hex(2)}"
        self._network = f"10.77.{secrets.randbelow(250) + 1}"
        self.gateway = f"{self._network}.1"
        self.nodes: list[subprocess.Popen[bytes]] = []
        self._num_cpus = num_cpus
        self._count, self._with_ray = count, ray
        #: the namespaces
        self.names: list[str] = []

    def __enter__(self) -> Self:
        try:
            _ip("link", "add", self._name, "type", "bridge")
            _ip("address", "add", f"{self.gateway}/24", "dev", self._name)
            _ip("link", "set", self._name, "up")
            for number in range(self._count):
                self._make(number)
                if self._with_ray:
                    self._start(number)
        except BaseException:
            self.__exit__()
            raise
        return self

    @property
    def address(self) -> str:
        return f"http://{self.ip(0)}:{DASHBOARD}"

    def ip(self, number: int) -> str:
        return f"{self._network}.{number + 11}"

    def cluster(self) -> RayCluster:
        return RayCluster(self.address, self.token, python=sys.executable)

    def add(self) -> int:
        """Start another host; returns its number."""
        number = len(self.names)
        self._make(number)
        self._start(number)
        return number

    def _make(self, number: int) -> None:
        host, link = f"{self._name}n{number}", f"{self._name}v{number}"
        _ip("netns", "add", host)
        self.names.append(host)
        _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", host)
        _ip("link", "set", link, "master", self._name, "up")
        _ip("-n", host, "address", "add", f"{self.ip(number)}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", host, "link", "set", device, "up")
        _ip("-n", host, "route", "add", "default", "via", self.gateway)

    def _start(self, number: int) -> None:
        host = self.names[number]
        log = self._folder / f"host-{number}.log"
        # its own mounts: the private folder, and Ray's, which is found by its path
        script = f'mount -t tmpfs none "{self.private}" && exec "$@"'
        command = ["ip", "netns", "exec", host, "unshare", "--mount", "sh", "-c", script, "sh", *self._ray(number)]

        def start() -> subprocess.Popen[bytes]:
            with log.open("wb") as out:
                return subprocess.Popen(command, env=self.environment(), stdout=out, stderr=out, start_new_session=True)

        alive = sum(node.poll() is None for node in self.nodes)
        self.nodes.append(started_node(start, log, self.address, self.token, alive + 1))

    def kill(self, number: int) -> None:
        """Take the host away: SIGKILL for all of its processes, and its cable is cut."""
        host = self.names[number]
        found = subprocess.run(["ip", "netns", "pids", host], capture_output=True, text=True, check=True).stdout.split()
        _ip("link", "set", f"{self._name}v{number}", "down")
        for pid in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(int(pid)).kill()
        self.nodes[number].wait(30)

    def hide(self, number: int, folder: Path) -> None:
        """Make the host see an empty folder there from now on."""
        target = str(self.nodes[number].pid)
        command = ["nsenter", "--mount", "--target", target, "mount", "-t", "tmpfs", "none", str(folder)]
        subprocess.run(command, check=True, capture_output=True)

    def _ray(self, number: int) -> list[str]:
        options = [f"--num-cpus={self._num_cpus}", "--object-store-memory=200000000"]
        options += ["--min-worker-port=0", "--max-worker-port=0"]
        place = ["head", f"--temp-dir={self._folder / 'ray'}"] if number == 0 else ["worker", self.ip(0)]
        return ["bash", str(SCRIPTS / "ray_host.sh"), *place, *options]

    def environment(self) -> dict[str, str]:
        """The variables of a process on a host; `ray` and `raytrain` are those of this environment."""
        plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return {**plain, "PATH": path, "RAY_AUTH_TOKEN": self.token, **S3_ENVIRONMENT, MARK: self.mark}

    def __exit__(self, *exc: object) -> None:
        end_head(self.mark, *(node.pid for node in self.nodes))
        for node in self.nodes:
            node.wait(30)
        for host in self.names:
            subprocess.run(["ip", "netns", "delete", host], check=False, capture_output=True)
        subprocess.run(["ip", "link", "delete", self._name], check=False, capture_output=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
