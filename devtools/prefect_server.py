"""A real Prefect server for tests: own home, own storage, a free port, a process session of its own."""

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
from prefect.events.worker import EventsWorker
from prefect.settings import PREFECT_API_URL, PREFECT_LOCAL_STORAGE_PATH, temporary_settings

from devtools.servers import environment, wait_for_http
from plugin_core.clusters.local_head_keeper import free_ports
from plugin_core.clusters.processes import wait_for_end

DATABASE = "prefect.db"
#: A database with all tables, from this process's first server: creating them takes half of a start.
_tables: Path | None = None


@contextlib.contextmanager
def prefect_server(home: Path, ui: bool = False) -> Iterator[str]:
    """Yields the API's URL, which is also set for this process and its children while the server runs; the pages are at the
    same host and port."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/api"
    values = {
        "PREFECT_HOME": str(home),
        "PREFECT_LOCAL_STORAGE_PATH": str(home / "storage"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_API_URL": url,
    }
    home.mkdir(parents=True, exist_ok=True)
    if _tables is not None:
        shutil.copy(_tables, home / DATABASE)
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    command += [] if ui else ["--no-ui"]
    with environment(values), (home / "server.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            wait_for_http(f"{url}/health", server)
            _keep_tables(home)
            # this process has read its environment already
            with temporary_settings(
                {PREFECT_API_URL: url, PREFECT_LOCAL_STORAGE_PATH: values["PREFECT_LOCAL_STORAGE_PATH"]}
            ):
                yield url
                # this process sends events in the background, to the server that its first one went to
                EventsWorker.drain_all()
        finally:
            _stop(server)


def _keep_tables(home: Path) -> None:
    global _tables
    if _tables is None:
        _tables = home / "tables.db"
        live, copy = (contextlib.closing(sqlite3.connect(file)) for file in (home / DATABASE, _tables))
        with live as source, copy as target:
            source.backup(target)


def _stop(server: subprocess.Popen[bytes]) -> None:
    group = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
    os.killpg(server.pid, signal.SIGTERM)
    for process in wait_for_end(group, 20.0):
        process.kill()
    server.wait(timeout=10)
