"""A finished search in a run directory, and another one that continues from it."""

import json
from pathlib import Path
from typing import Any

from plugin_core import CheckpointRef, RunConfig, RunRef, TrainResult, TrainSpec, TuneResult, TuneSpec
from plugin_core.runs.context import StepContext
from plugin_core.runs.directory import RunDir

STEPS = {"train_loop_config": {"step": {"uniform": [0, 10]}}}
GRID = {"train_loop_config": {"step": {"grid_search": [1, 2, 3]}}}


def search(tmp_path: Path, name: str = "new", **fields: Any) -> TuneSpec:
    train = TrainSpec(framework="python", train_loop_per_worker="a:b", train_loop_config={"epochs": 9})
    given = {"train": train, "param_space": STEPS, "metric": "value", "mode": "max", **fields}
    return TuneSpec(**given, run_config=RunConfig(name=name, storage_path=str(tmp_path)))


def row(number: int, value: float | None, status: str = "finished", **more: Any) -> dict[str, Any]:
    config = {"train_loop_config": {"step": number}}
    return {"run": f"trial-t{number}", "status": status, "config": config, "value": value, "reports": 3, **more}


ROWS = [row(1, 1.0), row(2, 2.0, "stopped"), row(3, None, "failed", error="x")]


def finished(tmp_path: Path, rows: list[dict[str, Any]] = ROWS, name: str = "old", **fields: Any) -> RunDir:
    """A search whose first trial finished, whose second was stopped, and whose third failed."""
    spec = search(tmp_path, name, **fields)
    rundir = RunDir.of(spec)
    rundir.write_spec(spec)
    for each in rows:
        leg = rundir.child(each["run"])
        leg.write_child_spec(spec.trial_spec(each["config"]))
        leg.location.child("checkpoint_1", "model").write(b"m")
        line = {"attempt": 1, "time": 0.0, "report": 1, "metrics": {"value": each["value"]}, "checkpoint": "checkpoint_1"}
        leg.step.child("journal", "001-0000001.jsonl").write(f"{json.dumps(line)}\n".encode())
        if each["status"] == "finished":
            leg.write_result(
                TrainResult(
                    run=RunRef(uri=leg.uri, name=leg.name),
                    metrics={"value": each["value"]},
                    checkpoint=CheckpointRef(uri=leg.location.child("checkpoint_1").uri),
                )
            )
    rundir.location.child("trials.json").write(json.dumps(rows).encode())
    ref = RunRef(uri=rundir.uri, name=name)
    rundir.write_result(TuneResult(run=ref, best=TrainResult(run=ref), best_config={}, trials={}, table="/t"))
    return rundir


def begun(spec: TuneSpec) -> StepContext:
    rundir = RunDir.of(spec)
    rundir.write_spec(spec)
    return StepContext(rundir.read_spec(), rundir, 1, {}, lambda phase: None)


def contents(rundir: RunDir) -> dict[str, bytes]:
    files = (path for path in Path(rundir.location.path).rglob("*") if path.is_file())
    return {str(path): path.read_bytes() for path in files if "pins" not in path.parts}
