"""Each way of installing, alone in an environment of its own: it imports and runs its own part."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow

STEPS = """
def loop(config):
    import ray.train
    ray.train.report({"answer": config["x"] * 2})
"""
CORE = """
from plugin_core import RunConfig, TrainSpec, run
spec = TrainSpec(framework="python", train_loop_per_worker="steps:loop", train_loop_config={"x": 21},
                 run_config=RunConfig(name="core", storage_path="runs"))
print("METRICS", run(spec).metrics)
"""
PREFECT = """
from prefect import flow
from plugin_core import RunConfig, TrainSpec
from prefect_integration import train
import steps

@flow
def main():
    return train(TrainSpec(framework="python", train_loop_per_worker=steps.loop, train_loop_config={"x": 21},
                           run_config=RunConfig(storage_path="runs")))

if __name__ == "__main__":
    print("METRICS", main().metrics)
"""
AIRFLOW = """
from airflow.sdk import dag
from airflow_provider.operators import RayTrainOperator

@dag(schedule=None)
def main():
    RayTrainOperator(task_id="train", framework="python", train_loop_per_worker="steps:loop", train_loop_config={"x": 21},
                     run_config={"storage_path": "{{ dag_run.conf['storage'] }}"})

dag_object = main()
"""
AIRFLOW_RUN = """
import os
from airflow.dag_processing.dagbag import DagBag
dag = DagBag(os.environ["AIRFLOW__CORE__DAGS_FOLDER"]).dags["main"]
from dags.main import dag_object
run = dag_object.test(run_conf={"storage": os.getcwd() + "/runs"})
[ti] = run.get_task_instances()
print("STATE", ti.state)
"""
OTHERS = {"": ("prefect", "airflow", "torch"), "prefect": ("airflow", "torch"), "airflow": ("prefect", "torch")}


@pytest.mark.parametrize("extra", ["", "prefect", "airflow"])
def test_each_extra_installs_alone_and_runs_its_own_part(extra: str, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    python = str(venv / "bin" / "python")
    # pip builds in the folder itself, where another test may build too
    kept = shutil.ignore_patterns(".*", "build", "dist", "site", "*.egg-info", "__pycache__")
    source = shutil.copytree(ROOT, tmp_path / "source", ignore=kept)
    what = f"{source}[{extra}]" if extra else str(source)
    install = [python, "-m", "pip", "install", "-q", "--no-compile", "-c", str(ROOT / "constraints.txt"), what]
    subprocess.run(install, check=True)
    work = tmp_path / "work"
    work.mkdir()
    (work / "steps.py").write_text(STEPS)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PREFECT", "RAY"))},
        "RAYTRAIN_HOME": str(tmp_path / "home"),
        "PREFECT_HOME": str(tmp_path / "prefect"),
        "PREFECT_LOCAL_STORAGE_PATH": str(tmp_path / "prefect-storage"),
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "90",
        "PYTHONPATH": str(work),
    }

    def call(*command: str) -> str:
        done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
        return done.stdout

    for package in OTHERS[extra]:
        found = call(python, "-c", f"import importlib.util as u; print(u.find_spec({package!r}))")
        assert found.strip() == "None", f"{package} came along"
    try:
        if extra == "":
            assert "METRICS {'answer': 42}" in call(python, "-c", CORE)
            assert call(str(venv / "bin" / "raytrain"), "cluster", "status").startswith("running at")
        elif extra == "prefect":
            (work / "main.py").write_text(PREFECT)
            assert "METRICS {'answer': 42}" in call(python, "main.py")
        else:
            dags = work / "dags"
            dags.mkdir()
            (dags / "main.py").write_text(AIRFLOW)
            environment |= {
                "AIRFLOW_HOME": str(tmp_path / "airflow"),
                "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
                "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            }
            airflow = str(venv / "bin" / "airflow")
            call(airflow, "db", "migrate")
            assert "ray-train-workflows" in call(airflow, "providers", "list")
            call(airflow, "dags", "reserialize")
            assert "STATE success" in call(python, "-c", AIRFLOW_RUN)
    finally:
        call(str(venv / "bin" / "raytrain"), "cluster", "stop")
