"""Storage of other clouds for tests: Azurite (Azure, from npm) and an emulator of Google Cloud Storage (from PyPI)."""

import base64
import contextlib
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools.servers import environment, wait_for_port
from plugin_core.clusters.local_head_keeper import free_ports

#: Where `make azurite` installs it.
AZURITE = Path(__file__).parents[2] / ".azurite/node_modules/azurite/dist/src/blob/main.js"
#: The variable that holds Azurite's connection string, for storage URIs.
AZURE_VARIABLE = "AZURITE_CONNECTION"
#: The variable that says how to log in to Google's emulator.
GCS_VARIABLE = "GCS_EMULATOR_TOKEN"
#: What the installation must allow so that a storage URI may name these variables.
ALLOWED = {"RAYTRAIN_URI_VARIABLES": f"{AZURE_VARIABLE},{GCS_VARIABLE}"}


@contextlib.contextmanager
def azurite(folder: Path) -> Iterator[str]:
    """Azurite's blob service with an account and key of its own and the container "runs"; yields a storage URI in it."""
    node = shutil.which("node")
    if node is None or not AZURITE.exists():
        pytest.skip("Azurite is not installed: `make azurite` installs it from npm")
    from azure.storage.blob import BlobServiceClient

    folder.mkdir(parents=True, exist_ok=True)
    (port,) = free_ports(1)
    account, key = "raytrain", base64.b64encode(secrets.token_bytes(64)).decode()
    command = [node, str(AZURITE), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder)]
    # the client's newest API version is often one that the emulator does not know yet
    command += ["--silent", "--disableTelemetry", "--skipApiVersionCheck"]
    variables = {**os.environ, "AZURITE_ACCOUNTS": f"{account}:{key}"}
    with _server(command, folder / "server.log", port, variables):
        endpoint = f"http://127.0.0.1:{port}/{account}"
        connection = f"DefaultEndpointsProtocol=http;AccountName={account};AccountKey={key};BlobEndpoint={endpoint};"
        with BlobServiceClient.from_connection_string(connection) as client:
            client.create_container("runs")
        with environment({AZURE_VARIABLE: connection, **ALLOWED}):
            yield f"abfs://runs@{account}.blob.core.windows.net/prefix?connection_string=${AZURE_VARIABLE}"


@contextlib.contextmanager
def gcs_server(log: Path, *, conditions: bool = True) -> Iterator[str]:
    """Google Cloud Storage's emulator with the bucket "runs"; yields a storage URI in it. `conditions`: see there."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "tests.support.gcs_emulator", str(port)] + ["--ignore-conditions"] * (not conditions)
    with _server(command, log, port, dict(os.environ)), environment({GCS_VARIABLE: "anon", **ALLOWED}):
        yield f"gs://runs/prefix?endpoint_url=http://127.0.0.1:{port}&token=${GCS_VARIABLE}"


@contextlib.contextmanager
def _server(command: list[str], log: Path, port: int, variables: dict[str, str]) -> Iterator[None]:
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=stream, start_new_session=True, env=variables)
    try:
        wait_for_port(port, process)
        yield
    finally:
        process.terminate()
        process.wait(timeout=30)
