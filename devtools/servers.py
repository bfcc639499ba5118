"""Real servers for tests: the embedded Ray head under a home of its own, an S3 API over HTTP, MLflow."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psutil

from plugin_core.clusters import local_head
from plugin_core.clusters.jobs_api import JobsClient
from plugin_core.clusters.local_head import RAYLET_IS_LATE
from plugin_core.clusters.local_head_keeper import free_ports
from plugin_core.clusters.processes import wait_for_end
from plugin_core.errors import ClusterUnreachableError

#: What the S3 client in every process of a test needs; the server accepts any key.
S3_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def variable_of(process: psutil.Process, name: str) -> str:
    """A variable of the environment that a process was started with; "" if there is none, or no such process."""
    try:
        return str(process.environ().get(name, ""))
    except psutil.Error:
        return ""


@contextlib.contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def embedded_head(home: Path, num_cpus: int = 4) -> Iterator[local_head.Head]:
    """The embedded local head, as `LocalCluster` starts it, under its own home; leaves no process behind."""
    with environment({"RAYTRAIN_HOME": str(home), **S3_ENVIRONMENT}):
        head = local_head.ensure(num_cpus=num_cpus, idle_timeout_s=3600)
        try:
            yield head
        finally:
            local_head.stop()
            left = head.processes()
            assert left == [], f"processes of the head are left: {left}"


@contextlib.contextmanager
def s3_server(log: Path, host: str = "127.0.0.1") -> Iterator[str]:
    """moto's S3 server, on a local address, with the bucket "runs"; yields a storage URI in it."""
    import boto3

    (port,) = free_ports(1)
    command = [sys.executable, "-m", "moto.server", "-H", host, "-p", str(port)]
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=stream, start_new_session=True)
    try:
        wait_for_http(f"http://{host}:{port}/moto-api/", process)
        with environment(S3_ENVIRONMENT):
            boto3.client("s3", endpoint_url=f"http://{host}:{port}").create_bucket(Bucket="runs")
            yield f"s3://runs/prefix?endpoint_override={host}:{port}&scheme=http"
    finally:
        process.terminate()
        process.wait(timeout=30)


def s3_endpoint(uri: str) -> str:
    """The address of the S3 server in a storage URI, such as http://127.0.0.1:5000."""
    return "http://" + parse_qs(urlsplit(uri).query)["endpoint_override"][0]


@contextlib.contextmanager
def mlflow_server(folder: Path, port: int | None = None) -> Iterator[str]:
    """MLflow's tracking and registry server on a database in `folder`; yields its URI. Its processes end with it."""
    folder.mkdir(parents=True, exist_ok=True)
    port = port or free_ports(1)[0]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += [
        "--backend-store-uri",
        f"sqlite:///{folder}/mlflow.db",
        "--default-artifact-root",
        str(folder / "artifacts"),
    ]
    with (folder / "server.log").open("wb") as stream:
        # without its background job runners: five more processes, which outlive the server
        quiet = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        process = subprocess.Popen(command, stdout=stream, stderr=stream, start_new_session=True, env=quiet)
    try:
        wait_for_http(f"http://127.0.0.1:{port}/health", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        started = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        process.wait(timeout=30)
        left = wait_for_end(started, 30.0)
        assert left == [], f"processes of the MLflow server are left: {left}"


def wait_for_nodes(
    address: str, token: str, count: int, process: subprocess.Popen[bytes] | None = None, timeout_s: float = 600
) -> None:
    """Wait until a Ray head at `address` has `count` live nodes; raises if the `process` of one of them ends."""

    async def nodes() -> int:
        async with JobsClient(address, token) as client:
            return len(await client.nodes())

    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process is not None and process.poll() is not None:
            raise RuntimeError(f"{process.args} ended with {process.returncode} before there were {count} nodes")
        with contextlib.suppress(ClusterUnreachableError):
            if asyncio.run(nodes()) >= count:
                return
        time.sleep(0.2)
    raise TimeoutError(f"{address} had not {count} nodes within {timeout_s} s")


def started_node(
    start: Callable[[], subprocess.Popen[bytes]], log: Path, address: str, token: str, count: int
) -> subprocess.Popen[bytes]:
    """`start` a node of the Ray cluster at `address`, and wait until that has `count` nodes. If `log` shows that its
    raylet gave up after Ray's fixed 30 s, start it again, as the embedded head does and Kubernetes would."""
    while True:
        node = start()
        try:
            wait_for_nodes(address, token, count, node)
        except RuntimeError:
            if RAYLET_IS_LATE not in log.read_text(errors="replace"):
                raise
        else:
            return node


def wait_for_http(url: str, process: subprocess.Popen[bytes], timeout_s: float = 600) -> None:
    """Wait until `url` answers with success; raises if the process ends or the time is up."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args} ended with {process.returncode} before {url} answered")
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.2)
    raise TimeoutError(f"{url} did not answer within {timeout_s} s")


def wait_for_port(port: int, process: subprocess.Popen[bytes], timeout_s: float = 600) -> None:
    """Wait until something listens on a local port; raises if the process ends or the time is up."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args} ended with {process.returncode} before it listened on port {port}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
            return
        time.sleep(0.2)
    raise TimeoutError(f"nothing listened on port {port} within {timeout_s} s")


def command_of(process: psutil.Process | None) -> list[str]:
    """[] for one that has just ended."""
    if process is not None:
        with contextlib.suppress(psutil.NoSuchProcess):
            return process.cmdline()
    return []


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
