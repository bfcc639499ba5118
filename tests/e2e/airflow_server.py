"""A real Airflow, whose tasks run on the tests' Ray head; completely stopped at the end."""

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from airflow_provider.testing import AirflowServer
from devtools.chaos import Proxy
from devtools.servers import variable_of
from plugin_core.clusters.local_head import Head
from tests.support.canaries import plain_canary
from tests.support.fake_kubernetes import FakeKubernetes
from tests.support.users_modules import PACKAGE, pack


def dags_of_the_migration() -> str:
    """The DAGs of docs/migrate-astro-provider-ray.md, in one file."""
    text = (ROOT / "docs" / "migrate-astro-provider-ray.md").read_text()
    return "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))


DAGS = Path(__file__).parent / "airflow_dags"
#: The name of the folder of DAGs. Airflow itself replaces variables in it, so `$HOME` cannot be among it.
ODD = 'it\'s "a" folder #1? $1 `id` &;|<>()[]{}~! ü 漢'
#: The key that opens an object store for Airflow's processes, by `secret_key=$OUR_SECRET` in its URI.
STORAGE_KEY = plain_canary("storage")
ROOT = Path(__file__).parents[2]
#: What the published example DAGs run, with a Ray task of its own.
SCRIPT = """
import ray


@ray.remote
def greet():
    return "hello world"


ray.init()
print(ray.get(greet.remote()))
"""

PACKAGED_DAG = """
from airflow.sdk import dag
from airflow_provider.operators import RayTrainOperator
from vision_team.models.train import loop


@dag(schedule=None)
def packaged():
    by_value = RayTrainOperator(task_id="by_value", train_loop_per_worker=loop)
    by_name = RayTrainOperator(task_id="by_name", train_loop_per_worker="vision_team.models.train:loop")
    by_value >> by_name


packaged()
"""


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
def kubernetes(tmp_path_factory: pytest.TempPathFactory, head: Head) -> Iterator[FakeKubernetes]:
    """A fake of Kubernetes; the Ray behind each of its clusters is the tests' head."""
    with FakeKubernetes(tmp_path_factory.mktemp("kubernetes"), token=head.token) as fake:
        yield fake


@pytest.fixture(scope="package")
def airflow(folder: Path, head: Head, gate: Proxy, kubernetes: FakeKubernetes) -> Iterator[AirflowServer]:
    def connection(conn_type: str, port: int | None, password: str) -> str:
        return json.dumps({"conn_type": conn_type, "host": "127.0.0.1", "port": port, "password": password})

    def on_kubernetes(name: str, **more: str) -> str:
        place = {"kubeconfig": str(kubernetes.kubeconfig), "address": head.address, "python": sys.executable}
        kuberay = {"name": name, "settings": {"image": "registry/work:1"}, **place, **more}
        return json.dumps({"conn_type": "rayjobs", "extra": {"kuberay": kuberay}})

    dags = folder / ODD
    shutil.copytree(DAGS, dags, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(DAGS.parent / "same_spec.yaml", folder)
    shutil.copy(ROOT / "example_dags" / "retrain.py", dags)
    (dags / "smallest.py").write_text(dag_of_the_docs("smallest"))
    (dags / "migrated.py").write_text(dags_of_the_migration())
    pack(dags / "packaged.zip", {**PACKAGE, "packaged_dag.py": PACKAGED_DAG})
    (folder / "ray_scripts").mkdir()
    (folder / "ray_scripts" / "script.py").write_text(SCRIPT)
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
        "OUR_KEY": "testing",
        "OUR_SECRET": STORAGE_KEY,
        "RAYTRAIN_URI_VARIABLES": "OUR_KEY,OUR_SECRET",
        "RAY_SCRIPTS": str(folder / "ray_scripts"),
        "AIRFLOW_CONN_RAY_CONN": connection("rayjobs", port, head.token),
        "AIRFLOW_CONN_RAY_ON_KUBERNETES": on_kubernetes("migrated"),
        "AIRFLOW_CONN_RAY_SHARED": on_kubernetes("shared", share="workflow"),
        "AIRFLOW_CONN_PROXIED": connection("rayjobs", gate.port, head.token),
        "AIRFLOW_CONN_WRONG_TOKEN": connection("rayjobs", port, "wrong"),
        "AIRFLOW_CONN_A_WEB_SERVER": connection("http", port, head.token),
    }
    with AirflowServer(folder / "home", dags, variables) as server:
        yield server
    others = (process for process in psutil.process_iter() if process.pid != os.getpid())
    left = [process for process in others if str(folder) in variable_of(process, "TEST_FOLDER")]
    assert left == [], f"processes are left: {left}"
