import asyncio
import contextlib
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from plugin_core import RayCluster
from plugin_core.jobs import JobsClient
from plugin_core.keeper import free_ports, ray_head_command, ray_head_environment
from plugin_core.local_head import MARK, end_processes, marked_processes
from tests.chaos.tools import Proxy, Trail
from tests.servers import S3_ENVIRONMENT, wait_for_nodes

ROOT = Path(__file__).parents[2]


@pytest.fixture
def trail(tmp_path: Path) -> Trail:
    return Trail(tmp_path / "trail.jsonl")


class OwnHead:
    """A Ray head, with more nodes when wanted, that a test may kill as it likes."""

    def __init__(self, folder: Path, num_cpus: int = 3):
        self.mark, self.token, self.ports = secrets.token_hex(8), secrets.token_hex(16), free_ports(9)
        self._folder = folder
        self.environment = {**ray_head_environment(self.ports, self.token), MARK: self.mark, **S3_ENVIRONMENT}
        # the switch that binds everything to loopback also forbids a second node
        del self.environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"]
        self.nodes: list[subprocess.Popen[bytes]] = []
        self._start(ray_head_command(self.ports, str(folder / "ray"), num_cpus, None))
        self.address = f"http://127.0.0.1:{self.ports[1]}"
        wait_for_nodes(self.address, self.token, 1)

    def cluster(self, address: str | None = None) -> RayCluster:
        return RayCluster(address or self.address, self.token, python=sys.executable)

    def add_node(self, num_cpus: int) -> list[psutil.Process]:
        """Another raylet on this machine; returns its processes, to be killed."""
        before = {process.pid for process in marked_processes(self.mark)}
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
        command += [f"--address=127.0.0.1:{self.ports[0]}", f"--num-cpus={num_cpus}"]
        names = (
            "metrics-export-port",
            "runtime-env-agent-port",
            "dashboard-agent-listen-port",
            "dashboard-agent-grpc-port",
        )
        command += [f"--{name}={port}" for name, port in zip(names, free_ports(4), strict=True)]
        command += ["--min-worker-port=0", "--max-worker-port=0"]
        self._start(command)
        wait_for_nodes(self.address, self.token, len(self.nodes))
        return [process for process in marked_processes(self.mark) if process.pid not in before]

    def node_ids(self) -> list[str]:
        """The living nodes' ids, the head's first."""

        async def ask() -> list[dict[str, Any]]:
            async with JobsClient(self.address, self.token) as client:
                return await client.nodes()

        nodes = sorted(asyncio.run(ask()), key=lambda node: (not node["is_head_node"], node["start_time_ms"]))
        return [node["node_id"] for node in nodes]

    def _start(self, command: list[str]) -> None:
        log = (self._folder / f"node-{len(self.nodes)}.log").open("wb")
        self.nodes.append(subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, process_group=0))

    def close(self) -> None:
        for process in marked_processes(self.mark):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
        end_processes(marked_processes(self.mark), 2.0)
        for node in self.nodes:
            node.wait(30)
        assert marked_processes(self.mark) == []


@pytest.fixture
def own_head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., OwnHead]]:
    """Starts Ray heads of the test's own."""
    heads: list[OwnHead] = []

    def start(**options: Any) -> OwnHead:
        # Ray's sockets lie in here, and their paths have to be short
        heads.append(OwnHead(Path(tmp_path_factory.mktemp("h", numbered=True)), **options))
        return heads[-1]

    yield start
    for head in heads:
        head.close()


@pytest.fixture
def proxy() -> Iterator[Callable[[str], Proxy]]:
    """Puts a proxy in front of an address (`http://host:port`)."""
    proxies: list[Proxy] = []

    def start(address: str) -> Proxy:
        host, _, port = address.rpartition("//")[2].partition(":")
        proxies.append(Proxy(host, int(port)))
        return proxies[-1]

    yield start
    for each in proxies:
        each.close()
