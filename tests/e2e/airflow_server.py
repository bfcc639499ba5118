"""A real Airflow, whose tasks run on the tests' Ray head; stopped wholly."""

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from airflow_provider.testing import AirflowServer
from plugin_core.local_head import Head

DAGS = Path(__file__).parent / "airflow_dags"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What tests and DAGs share: data, storage, and files to wait for."""
    path = tmp_path_factory.mktemp("airflow")
    (path / "x.csv").write_text("x\n" + "\n".join(map(str, range(20))) + "\n")
    return path


@pytest.fixture(scope="session")
def airflow(folder: Path, head: Head) -> Iterator[AirflowServer]:
    variables = {"TEST_FOLDER": str(folder), "PYTHONPATH": str(ROOT)}
    with AirflowServer(folder / "home", DAGS, variables) as server:
        yield server
    left = [process for process in psutil.process_iter() if str(folder) in _told(process)]
    assert left == [], f"processes are left: {left}"


def _told(process: psutil.Process) -> str:
    """The part of a process's environment that says whose it is."""
    try:
        return "" if process.pid == os.getpid() else process.environ().get("TEST_FOLDER", "")
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return ""
