"""Ray heads that a test may treat as it likes."""

import asyncio
import contextlib
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil

from devtools.chaos import kill_all, wait_until
from devtools.sampling import Sampler
from devtools.servers import S3_ENVIRONMENT, started_node
from plugin_core import LocalCluster, RayCluster
from plugin_core.clusters.jobs_api import JobsClient
from plugin_core.clusters.local_head import MARK, end_head, marked_processes
from plugin_core.clusters.local_head_keeper import (
    FORKING_RAY,
    RAY,
    free_ports,
    knows_itself,
    ray_head_command,
    ray_head_environment,
)
from plugin_core.ray_internals.forked import FEW_PAGES, SOCKET


class _LikeEmbedded(RayCluster):
    """Starts its drivers as the embedded head does."""

    def driver_command(self) -> list[str]:
        return LocalCluster().driver_command()


class OwnHead:
    """A Ray head, with more nodes when wanted, that a test may kill as it likes. `preload`: with a fork server, like
    the embedded head; other nodes have none. `python`: another environment's Python, without a fork server and in an
    empty folder, so that a job finds nothing of this checkout."""

    def __init__(
        self,
        num_cpus: int = 3,
        object_store_memory: int | None = None,
        preload: bool = True,
        python: str = sys.executable,
    ):
        self.mark, self.token, self.ports = secrets.token_hex(8), secrets.token_hex(16), free_ports(8)
        # Ray puts its sockets there, and a socket's path may have at most 107 bytes
        self._folder = Path(tempfile.mkdtemp(prefix="h-"))
        self.environment = {**ray_head_environment(self.ports, self.token), MARK: self.mark, **S3_ENVIRONMENT}
        # the switch that binds everything to loopback also forbids a second node
        del self.environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"]
        self.nodes: list[subprocess.Popen[bytes]] = []
        self._cwd = None if python == sys.executable else self._folder
        command = ray_head_command(self.ports, str(self._folder / "ray"), num_cpus, None, python)
        if preload and python == sys.executable and sys.platform == "linux":
            command[command.index(RAY)] = FORKING_RAY
            self.environment |= {SOCKET: str(self._folder / "fork"), FEW_PAGES: "1"}
        if object_store_memory is not None:
            command.append(f"--object-store-memory={object_store_memory}")
        self.address = f"http://127.0.0.1:{self.ports[1]}"
        try:
            self._start(command, 1)
            wait_until(lambda: knows_itself(str(self._folder / "ray"), self.ports))
        except BaseException:
            self.close()
            raise

    def cluster(self, address: str | None = None) -> RayCluster:
        return _LikeEmbedded(address or self.address, self.token, python=sys.executable)

    def add_node(self, num_cpus: int) -> list[psutil.Process]:
        """Add another raylet on this machine; returns its processes, so that they can be killed."""
        before, nodes = {process.pid for process in self.processes()}, len(self.node_ids())
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
        command += [f"--address=127.0.0.1:{self.ports[0]}", f"--num-cpus={num_cpus}"]
        names = ("metrics-export-port", "runtime-env-agent-port", "dashboard-agent-grpc-port")
        command += [f"--{name}={port}" for name, port in zip(names, free_ports(3), strict=True)]
        command += ["--dashboard-agent-listen-port=0", "--min-worker-port=0", "--max-worker-port=0"]
        self._start(command, nodes + 1)
        return [process for process in self.processes() if process.pid not in before]

    def remove_node(self, processes: list[psutil.Process]) -> None:
        """Kill a node that was added, and wait until the head knows."""
        others = len(self.node_ids()) - 1
        kill_all(processes)
        wait_until(lambda: len(self.node_ids()) == others)

    def node_ids(self) -> list[str]:
        """The live nodes' ids, the head's first."""

        async def ask() -> list[dict[str, Any]]:
            async with JobsClient(self.address, self.token) as client:
                return await client.nodes()

        nodes = sorted(asyncio.run(ask()), key=lambda node: (not node["is_head_node"], node["start_time_ms"]))
        return [node["node_id"] for node in nodes]

    def _start(self, command: list[str], nodes: int) -> None:
        log = self._folder / f"node-{len(self.nodes)}.log"

        def start() -> subprocess.Popen[bytes]:
            with log.open("wb") as out:
                node = subprocess.Popen(
                    command, cwd=self._cwd, env=self.environment, stdout=out, stderr=out, start_new_session=True
                )
            self.nodes.append(node)
            return node

        started_node(start, log, self.address, self.token, nodes)

    def processes(self) -> list[psutil.Process]:
        return marked_processes(self.mark, *(node.pid for node in self.nodes))

    def close(self) -> None:
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
        end_head(self.mark, *(node.pid for node in self.nodes))
        for node in self.nodes:
            node.wait(30)
        assert self.processes() == []
        shutil.rmtree(self._folder)


class Memory(Sampler):
    """The peak memory of a head's processes while this runs, in bytes: `private`, their own memory, in sum and above
    that at the beginning; `shared`, the object store."""

    every_s = 0.3

    def __init__(self, head: OwnHead):
        self._head = head
        self._before, _ = self._now()
        self.private = self.shared = 0

    def sample(self) -> None:
        private, shared = self._now()
        self.private, self.shared = max(self.private, private - self._before), max(self.shared, shared)

    def _now(self) -> tuple[int, int]:
        private, shared = 0, [0]
        for process in self._head.processes():
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{process.pid}/status").read_text()
                sizes = dict(re.findall(r"^(Rss\w+):\s+(\d+) kB", status, re.MULTILINE))
                private += int(sizes.get("RssAnon", 0)) * 1024
                shared.append(int(sizes.get("RssShmem", 0)) * 1024)
        return private, max(shared)
