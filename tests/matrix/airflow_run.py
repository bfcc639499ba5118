"""Runs the DAGs of `dags/` in a real Airflow, with all its parts. `python airflow_run.py`, in an empty folder."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from airflow_provider.testing import AirflowServer


def smoke(airflow: AirflowServer) -> None:
    """The DAG trains, loses a worker, resumes and evaluates."""
    run_id = airflow.trigger("smoke")
    state = airflow.wait("smoke", run_id)
    if state != "success":
        for task in ("train", "evaluate", "check"):
            print(airflow.task_log("smoke", run_id, task)[-3000:])
    assert state == "success", state


def cancel(airflow: AirflowServer, runs: Path) -> None:
    """A person marks a deferred task failed: the Ray job ends."""
    run_id = airflow.trigger("endless")
    assert airflow.wait_for_task("endless", run_id, "train", {"deferred"}) == "deferred"
    wait_until(lambda: list(runs.glob("*/checkpoint_*")), "a checkpoint")
    assert drivers(runs)
    airflow.set_task_state("endless", run_id, "train", "failed")
    wait_until(lambda: not drivers(runs), "the end of the Ray job")


def drivers(runs: Path) -> list[int]:
    lines = [(process.pid, process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    return [pid for pid, line in lines if "plugin_core.driver" in " ".join(line) and str(runs) in " ".join(line)]


def wait_until(true: Callable[[], Any], what: str, timeout_s: float = 180) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.2)


if __name__ == "__main__":
    here = Path.cwd()
    with AirflowServer(here / "airflow", Path(__file__).parent / "dags", {"SMOKE": str(here)}) as airflow:
        assert "ray-train-workflows" in airflow.command("providers", "list"), "the provider is not registered"
        smoke(airflow)
        cancel(airflow, here / "endless")
    print("SMOKE PASSED")
