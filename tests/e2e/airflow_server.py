"""A real Airflow, whose tasks run on the tests' Ray head; completely stopped at the end."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from airflow_provider.testing import AirflowServer
from devtools.chaos import Proxy
from devtools.servers import variable_of
from plugin_core.clusters.local_head import Head

DAGS = Path(__file__).parent / "airflow_dags"
ROOT = Path(__file__).parents[2]


def dag_of_the_docs(name: str) -> str:
    """The code block of docs/airflow.md that defines this DAG."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "airflow.md").read_text(), re.DOTALL)
    (found,) = [block for block in blocks if f"def {name}():" in block]
    return str(found)


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What tests and DAGs share: data, storage, and files to wait for."""
    path = tmp_path_factory.mktemp("airflow")
    (path / "x.csv").write_text("x\n" + "\n".join(map(str, range(20))) + "\n")
    return path


@pytest.fixture(scope="package")
def gate(head: Head) -> Iterator[Proxy]:
    """A proxy before the Jobs API, which the connection `proxied` goes through."""
    url = urlsplit(head.address)
    proxy = Proxy(str(url.hostname), int(url.port or 80))
    yield proxy
    proxy.close()


@pytest.fixture(scope="package")
def airflow(folder: Path, head: Head, gate: Proxy) -> Iterator[AirflowServer]:
    def connection(conn_type: str, port: int | None, password: str) -> str:
        return json.dumps({"conn_type": conn_type, "host": "127.0.0.1", "port": port, "password": password})

    shutil.copytree(DAGS, folder / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(DAGS.parent / "same_spec.yaml", folder)
    shutil.copy(ROOT / "example_dags" / "retrain.py", folder / "dags")
    (folder / "dags" / "smallest.py").write_text(dag_of_the_docs("smallest"))
    port = urlsplit(head.address).port
    variables = {
        "TEST_FOLDER": str(folder),
        "EXAMPLE_STORAGE": str(folder / "runs"),
        "RAY_STORAGE": str(folder / "runs"),
        "PYTHONPATH": str(ROOT),
        # sooner than a deployment would, so that a test need not wait minutes for Airflow to notice
        "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "12",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "30",
        "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
        "AIRFLOW_CONN_PROXIED": connection("rayjobs", gate.port, head.token),
        "AIRFLOW_CONN_WRONG_TOKEN": connection("rayjobs", port, "wrong"),
        "AIRFLOW_CONN_A_WEB_SERVER": connection("http", port, head.token),
    }
    with AirflowServer(folder / "home", folder / "dags", variables) as server:
        yield server
    others = (process for process in psutil.process_iter() if process.pid != os.getpid())
    left = [process for process in others if str(folder) in variable_of(process, "TEST_FOLDER")]
    assert left == [], f"processes are left: {left}"
