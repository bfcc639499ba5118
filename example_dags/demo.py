"""The digits DAG in a real Airflow (`make demo-airflow`): scheduler, triggerer and API server, driven over REST.

Exits 0 when every task succeeded, the train task was seen deferred, and its XCom is a small JSON that the next tasks read.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

from airflow_provider.testing import AirflowServer
from plugin_core import local_head
from plugin_core.rundir import RunDir

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / ".demo" / "airflow"
STORAGE = ROOT / ".demo" / "runs"
DAG = "digits"
TASKS = ["make_data", "train", "evaluate", "batch_infer"]


def main() -> int:
    shutil.rmtree(HOME, ignore_errors=True)
    dags = HOME / "dags"
    dags.mkdir(parents=True)
    shutil.copy(ROOT / "example_dags" / "digits.py", dags)
    print("starting Airflow ...", flush=True)
    started = time.monotonic()
    variables = {"EXAMPLE_STORAGE": str(STORAGE), "PYTHONPATH": str(ROOT)}
    with AirflowServer(HOME, dags, variables) as airflow:
        print(f"Airflow is healthy after {time.monotonic() - started:.0f} s", flush=True)
        run_id = airflow.trigger(DAG)
        print(f"run {run_id} of the DAG {DAG!r}", flush=True)
        deferred = watch(airflow, run_id)
        good = report(airflow, run_id) and deferred
    print("Airflow is stopped")
    return 0 if good else 1


def watch(airflow: AirflowServer, run_id: str, timeout_s: float = 600) -> bool:
    """Print every change of a task's state until the run is over; whether the train task was seen deferred."""
    deferred = False
    seen: dict[str, str | None] = {}
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        states = airflow.task_states(DAG, run_id)
        for task_id in TASKS:
            if states.get(task_id) != seen.get(task_id) and states.get(task_id):
                print(f"  {task_id}: {states[task_id]}", flush=True)
        if states.get("train") == "deferred" and not deferred:
            deferred = True
            print(f"  train has given its worker slot back and waits for {job(airflow, run_id)}", flush=True)
        seen = states
        if airflow.run_state(DAG, run_id) in ("success", "failed"):
            return deferred
        time.sleep(0.5)
    raise TimeoutError(f"the DAG run was not over after {timeout_s:.0f} s: {seen}")


def job(airflow: AirflowServer, run_id: str) -> str:
    return str(airflow.xcom(DAG, run_id, "train", "_link_RayJobLink")).replace("/#/jobs/", ", the Ray job ")


def report(airflow: AirflowServer, run_id: str) -> bool:
    states = airflow.task_states(DAG, run_id)
    failed = [task_id for task_id in TASKS if states.get(task_id) != "success"]
    for task_id in failed:
        print(f"--- log of {task_id} ({states.get(task_id)})\n{airflow.task_log(DAG, run_id, task_id)[-6000:]}")
    if failed:
        return False
    train, evaluation, predicted = (airflow.xcom(DAG, run_id, task_id) for task_id in TASKS[1:])
    size = len(json.dumps(train))
    print(f"\nXCom of train, {size} bytes:\n{json.dumps(train, indent=1)}")
    print(f"evaluate:    {evaluation['metrics']}, passed: {evaluation['passed']}")
    print(f"batch_infer: {predicted['rows']} rows in {predicted['output']}")
    read = {json.dumps(checkpoint_read(result["run"]["uri"])) for result in (evaluation, predicted)}
    both = read == {json.dumps(train["checkpoint"])}
    print(f"both read the checkpoint of train's XCom: {both}")
    return size <= 2048 and both and bool(evaluation["passed"])


def checkpoint_read(run_uri: str) -> object:
    """The checkpoint that a step was given, out of the spec in its run directory."""
    return RunDir.at(run_uri).read_record()["spec"]["checkpoint"]


if __name__ == "__main__":
    code = main()
    head = local_head.current()
    if head is not None:
        print(f"the embedded Ray head stays warm for {head.idle_timeout_s:.0f} s; `raytrain cluster stop` ends it")
    sys.exit(code)
