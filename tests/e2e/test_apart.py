"""What each side can do without: the orchestrator without Ray, the cluster without our package."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devtools.ray_heads import OwnHead
from plugin_core import RayCluster, RayJobSpec, RunConfig, ScalingConfig, TrainSpec, TuneSpec, run
from plugin_core.clusters.local_head import Head
from plugin_core.errors import SpecError
from tests.support.environments import make_environment

SMOKE = Path(__file__).parents[1] / "matrix"
pytestmark = pytest.mark.slow

WITHOUT_RAY = """
import importlib.util, os
from core import smoke
from plugin_core import LocalCluster, RayCluster, RunConfig, TrainSpec, run
from plugin_core.clusters.doctor import describe_cluster
from plugin_core.errors import SpecError
import asyncio

assert importlib.util.find_spec("ray") is None
cluster = RayCluster(os.environ["ADDRESS"], os.environ["TOKEN"], python=os.environ["THERE"])
spec = smoke(cluster)
print(asyncio.run(describe_cluster(cluster)))
by_value = spec.model_copy(update={"train_loop_per_worker": lambda config: None}).with_name("by-value")
run(by_value, cluster)
uploads = spec.model_copy(update={"runtime_env": {"working_dir": os.getcwd()}}).with_name("uploads")
for each, where in ((spec.with_name("here"), LocalCluster()), (uploads, cluster)):
    try:
        run(each, where)
    except SpecError as exc:
        print("REFUSED", exc.message)
"""
DAG = """
from airflow.sdk import dag
from airflow_provider.operators import RayTrainOperator

@dag(schedule=None)
def apart():
    RayTrainOperator(task_id="train", train_loop_config={"steps": 2}, framework="python", ray_conn_id="apart",
                     train_loop_per_worker="steps:loop", run_config={"storage_path": "{{ dag_run.conf['storage'] }}"})

dag_object = apart()
"""
AIRFLOW = """
import importlib.util, os
from dags.apart import dag_object
assert importlib.util.find_spec("ray") is None
[task] = dag_object.test(run_conf={"storage": os.getcwd() + "/runs"}).get_task_instances()
print("STATE", task.state)
"""
FLOW = """
import importlib.util, os
from prefect import flow
from plugin_core import RayCluster, RunConfig, TrainSpec
from prefect_integration import train

@flow
def apart():
    cluster = RayCluster(os.environ["ADDRESS"], os.environ["TOKEN"], python=os.environ["THERE"])
    return train(TrainSpec(framework="python", train_loop_per_worker="steps:loop", train_loop_config={"steps": 2},
                           run_config=RunConfig(storage_path="runs")), cluster=cluster)

assert importlib.util.find_spec("ray") is None
print("STATE", apart().metrics)
"""


@pytest.fixture
def here(head: Head, tmp_path: Path) -> Callable[..., str]:
    """Calls a Python in an empty folder, with the head's address; returns what it prints."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PREFECT", "RAY"))}
    (work := tmp_path / "work").mkdir()

    def call(python: str, *arguments: str, **more: str) -> str:
        environment = {**kept, "ADDRESS": head.address, "TOKEN": head.token, "THERE": sys.executable, **more}
        environment |= {"PYTHONPATH": f"{SMOKE}{os.pathsep}{work}", "RAYTRAIN_HOME": str(tmp_path / "home")}
        done = subprocess.run([python, *arguments], cwd=work, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
        return done.stdout

    return call


def test_an_orchestrator_without_ray_runs_steps_on_a_cluster(here: Callable[..., str], tmp_path: Path) -> None:
    python = make_environment(tmp_path / "environment", "ray-train-workflows", without=("ray",))
    said = here(python, "-c", WITHOUT_RAY)
    assert "SMOKE PASSED" in said
    assert "1 nodes, 4 CPU" in said
    refused = [line for line in said.splitlines() if line.startswith("REFUSED")]
    assert "cluster: got the embedded Ray head, and Ray is not installed here" in refused[0]
    assert f"runtime_env: got {tmp_path}/work, which Ray packs and uploads, and Ray is not installed here" in refused[1]


def test_airflow_without_ray_runs_a_step_on_a_cluster(here: Callable[..., str], head: Head, tmp_path: Path) -> None:
    python = make_environment(tmp_path / "environment", "ray-train-workflows[airflow]", without=("ray",))
    (dags := tmp_path / "work" / "dags").mkdir()
    (dags / "apart.py").write_text(DAG)
    settings = {
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW_CONN_APART": f'{{"conn_type": "rayjobs", "host": "{head.address}", "password": "{head.token}"}}',
    }
    here(python, "-m", "airflow", "db", "migrate", **settings)
    here(python, "-m", "airflow", "dags", "reserialize", **settings)
    assert "STATE success" in here(python, "-c", AIRFLOW, **settings)


def test_prefect_without_ray_runs_a_step_on_a_cluster(here: Callable[..., str], tmp_path: Path) -> None:
    python = make_environment(tmp_path / "environment", "ray-train-workflows[prefect]", without=("ray",))
    settings = {"PREFECT_HOME": str(tmp_path / "prefect"), "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "90"}
    (tmp_path / "work" / "flow.py").write_text(FLOW)
    assert "STATE {'step': 1" in here(python, "flow.py", **settings)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[OwnHead, str]]:
    """A Ray head in an environment with `ray[default,data,train]` alone, and that environment's Python."""
    python = make_environment(tmp_path_factory.mktemp("bare") / "environment", "ray[default,data,train]")
    head = OwnHead(num_cpus=4, python=python)
    yield head, python
    head.close()


def counting(config: dict[str, int]) -> None:
    import ray.train

    for step in range(config["steps"]):
        ray.train.report({"step": step})


def doubled(x: int) -> int:
    return 2 * x


def test_a_cluster_without_our_package_is_told_apart(bare: tuple[OwnHead, str], tmp_path: Path) -> None:
    head, python = bare
    spec = TrainSpec(
        framework="python",
        train_loop_per_worker=counting,
        train_loop_config={"steps": 2},
        run_config=RunConfig(name="refused", storage_path=str(tmp_path)),
    )
    with pytest.raises(SpecError, match=r"cluster: ray-train-workflows is not installed for its Python; .*ship_package"):
        run(spec, RayCluster(head.address, head.token, python=python))


def test_a_job_brings_the_package_along(bare: tuple[OwnHead, str], tmp_path: Path) -> None:
    head, python = bare
    cluster = RayCluster(head.address, head.token, python=python, ship_package=True)
    script = (
        "import os; from core import smoke; from plugin_core import RayCluster\n"
        "smoke(RayCluster(os.environ['ADDRESS'], os.environ['TOKEN'], python=os.environ['THERE'], ship_package=True))"
    )
    environment = {**os.environ, "PYTHONPATH": str(SMOKE), "ADDRESS": head.address, "TOKEN": head.token, "THERE": python}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert "SMOKE PASSED" in done.stdout, done.stdout[-3000:] + done.stderr[-5000:]
    train = TrainSpec(
        framework="python",
        train_loop_per_worker=counting,
        train_loop_config={"steps": 2},
        scaling_config=ScalingConfig(num_workers=2),
    )
    search = TuneSpec(
        train=train,
        param_space={"train_loop_config": {"steps": {"grid_search": [2, 3]}}},
        metric="step",
        mode="max",
        run_config=RunConfig(name="search", storage_path=str(tmp_path)),
    )
    assert run(search, cluster).metrics == {"step": 2}
    job = RayJobSpec(function=doubled, arguments={"x": 21}, run_config=RunConfig(name="job", storage_path=str(tmp_path)))
    assert run(job, cluster).value == 42
