"""Example DAGs in a real Airflow: scheduler, triggerer and API server, driven over REST.

    python example_dags/demo.py [DAG ...]        (`make demo-airflow`: digits; `make examples` runs them all)

Exits 0 if every task succeeded and the results are as they should be; for `digits`, also if the train task was seen
deferred and its XCom is a small JSON that the next tasks read.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from airflow_provider.testing import AirflowServer
from plugin_core import CheckpointRef
from plugin_core.clusters import local_head
from plugin_core.runs.directory import RunDir

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path(os.environ.get("DEMO_FOLDER") or ROOT / ".demo")
HOME = FOLDER / "airflow"
STORAGE = FOLDER / "airflow-runs"


def main(*names: str) -> int:
    names = names or ("digits",)
    shutil.rmtree(HOME, ignore_errors=True)
    dags = HOME / "dags"
    dags.mkdir(parents=True)
    for name in names:
        shutil.copy(ROOT / "example_dags" / f"{name}.py", dags)
    print("starting Airflow ...", flush=True)
    started = time.monotonic()
    variables = {"EXAMPLE_STORAGE": str(STORAGE), "PYTHONPATH": str(ROOT)}
    with AirflowServer(HOME, dags, variables) as airflow:
        print(f"Airflow is healthy after {time.monotonic() - started:.0f} s", flush=True)
        good = [EXAMPLES[name](airflow) for name in names]
    print("Airflow is stopped")
    return 0 if all(good) else 1


def digits(airflow: AirflowServer) -> bool:
    results, deferred = follow(airflow, "digits")
    if not results:
        return False
    train, evaluation, predicted = (results[task_id] for task_id in ("train", "evaluate", "batch_infer"))
    size = len(json.dumps(train))
    print(f"\nXCom of train, {size} bytes:\n{json.dumps(train, indent=1)}")
    print(f"evaluate:    {evaluation['metrics']}, passed: {evaluation['passed']}")
    print(f"batch_infer: {predicted['rows']} rows in {predicted['output']}")
    read = {json.dumps(checkpoint_read(result["run"]["uri"])) for result in (evaluation, predicted)}
    both = read == {json.dumps(train["checkpoint"])}
    print(f"both read the checkpoint of train's XCom: {both}")
    return size <= 2048 and both and bool(evaluation["passed"]) and "train" in deferred


def prepare(airflow: AirflowServer) -> bool:
    results, _ = follow(airflow, "prepare")
    if not results:
        return False
    data, evaluation, predicted = (results[task_id] for task_id in ("prepare", "evaluate", "batch_infer"))
    print(f"prepared {data['rows']} rows; evaluate: {evaluation['metrics']}; predicted {predicted['rows']} rows")
    return bool(evaluation["passed"]) and predicted["rows"] == evaluation["metrics"]["rows"]


def tune_and_train(airflow: AirflowServer) -> bool:
    results, _ = follow(airflow, "tune_and_train")
    if not results:
        return False
    learning_rate = results["tune"]["best_config"]["train_loop_config"]["lr"]
    trained_with = RunDir.at(results["train"]["run"]["uri"]).read_record()["spec"]["train_loop_config"]["lr"]
    champion = results["promote"]
    print(f"tune found lr {learning_rate:.4f}; version {champion['version']} is the champion: {champion['metrics']}")
    return bool(trained_with == learning_rate and champion["checkpoint"] == results["train"]["checkpoint"]["uri"])


def loop(airflow: AirflowServer) -> bool:
    """January's model is the first; February's beats it; March's does not, and the champion stays."""
    shutil.rmtree(STORAGE / "_models" / "digits", ignore_errors=True)
    seen = []
    for month in ("january", "february", "march"):
        results, _ = follow(airflow, "loop", {"month": month})
        if not results:
            return False
        outcome, predicted = results["retrain"], results["predict"]
        print(f"{month}: {outcome['outcome']}: {outcome['reason']}; the champion is version {outcome['champion']}")
        print(f"{month}: {predicted['rows']} predictions of it in {predicted['output']}", flush=True)
        of_it = checkpoint_read(predicted["run"]["uri"]) == outcome["checkpoint"]
        seen.append((outcome["outcome"], outcome["champion"], of_it))
    return seen == [("promoted", 1, True), ("promoted", 2, True), ("kept", 2, True)]


def frameworks(airflow: AirflowServer) -> bool:
    """Each framework's example: its checkpoint must score here what its training reported."""
    sys.path.insert(0, str(ROOT))  # this is run as a file: let it find its neighbours
    from example_flows.frameworks import confirmed, example

    results, _ = follow(airflow, "frameworks", timeout_s=1800)
    good = bool(results)
    for name, trained in results.items():
        scores = example(name).evaluate(CheckpointRef(**trained["checkpoint"]).to_ray())
        print(f"{name}: reported {trained['metrics']}; its checkpoint evaluated: {scores}", flush=True)
        good &= confirmed(trained["metrics"], scores)
    return good


def champion(airflow: AirflowServer) -> bool:
    """Two DAGs (docs/airflow-example.md): a promotion by the first starts the second, which predicts with the champion."""
    results, _ = follow(airflow, "train_champion")
    if "promote" not in results:
        return False
    version = results["promote"]
    print(f"version {version['version']} of {version['name']} is the champion: {version['metrics']}")
    predicted, _ = follow(airflow, "predict_with_champion", run_id=started(airflow, "predict_with_champion"))
    if not predicted:
        return False
    print(f"{predicted['predict']['rows']} predictions in {predicted['predict']['output']}")
    of_it = checkpoint_read(predicted["predict"]["run"]["uri"]) == {"uri": version["checkpoint"]}
    print(f"the other DAG predicted with that version: {of_it}")
    return of_it and results["evaluate"]["passed"] and "keep" not in results


EXAMPLES = {
    "digits": digits,
    "prepare": prepare,
    "tune_and_train": tune_and_train,
    "loop": loop,
    "frameworks": frameworks,
    "champion": champion,
}


def follow(
    airflow: AirflowServer, dag_id: str, conf: dict[str, Any] | None = None, timeout_s: float = 900, run_id: str = ""
) -> tuple[dict[str, Any], set[str]]:
    """Follow a run of the DAG (by default a new one) to its end, and print each change of a task's state. Returns what
    the tasks that were not skipped returned (nothing if one failed, whose log is printed), and the tasks seen deferred.
    """
    run_id = run_id or airflow.trigger(dag_id, conf)
    print(f"run {run_id} of the DAG {dag_id!r}{f' with {conf}' if conf else ''}", flush=True)
    deferred: set[str] = set()
    seen: dict[str, str | None] = {}
    deadline = time.monotonic() + timeout_s
    while airflow.run_state(dag_id, run_id) not in ("success", "failed"):
        states = airflow.task_states(dag_id, run_id)
        for task_id, state in states.items():
            if state and state != seen.get(task_id):
                print(f"  {task_id}: {state}", flush=True)
            if state == "deferred" and task_id not in deferred:
                deferred.add(task_id)
                print(f"  {task_id} has given its worker slot back and waits for {job(airflow, dag_id, run_id, task_id)}")
        seen = states
        if time.monotonic() > deadline:
            raise TimeoutError(f"the DAG run was not over after {timeout_s:.0f} s: {seen}")
        time.sleep(0.5)
    states = airflow.task_states(dag_id, run_id)
    done = [task_id for task_id, state in states.items() if state == "success"]
    failed = [task_id for task_id, state in states.items() if state not in ("success", "skipped")]
    for task_id in failed:
        print(f"--- log of {task_id} ({states[task_id]})\n{airflow.task_log(dag_id, run_id, task_id)[-6000:]}")
    return ({} if failed else {task_id: returned(airflow, dag_id, run_id, task_id) for task_id in done}), deferred


def returned(airflow: AirflowServer, dag_id: str, run_id: str, task_id: str) -> Any:
    """What a task returned; None if it returned nothing, which Airflow does not store."""
    try:
        return airflow.xcom(dag_id, run_id, task_id)
    except HTTPError as exc:
        if exc.code != 404:
            raise
        return None


def started(airflow: AirflowServer, dag_id: str, timeout_s: float = 120) -> str:
    """A DAG's run that something else started: an asset or a schedule."""
    deadline = time.monotonic() + timeout_s
    while not (runs := airflow.request("GET", f"/dags/{dag_id}/dagRuns")["dag_runs"]):
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing started the DAG {dag_id!r} within {timeout_s:.0f} s")
        time.sleep(0.5)
    return str(runs[0]["dag_run_id"])


def job(airflow: AirflowServer, dag_id: str, run_id: str, task_id: str) -> str:
    return str(airflow.xcom(dag_id, run_id, task_id, "_link_RayJobLink")).replace("/#/jobs/", ", the Ray job ")


def checkpoint_read(run_uri: str) -> object:
    """The checkpoint that a step was given, from the spec in its run directory."""
    return RunDir.at(run_uri).read_record()["spec"]["checkpoint"]


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    head = local_head.current()
    if head is not None:
        print(f"the embedded Ray head stays warm for {head.idle_timeout_s:.0f} s; `raytrain cluster stop` ends it")
    sys.exit(code)
