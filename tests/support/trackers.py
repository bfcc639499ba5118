"""What trackers have, read back with their own readers."""

import json
import zipfile
from pathlib import Path
from typing import Any

import mlflow

from plugin_core.runs.directory import RunDir
from plugin_core.tracking.wandb_log import records


def run_id_of(rundir: RunDir) -> str:
    return str(json.loads(rundir.step.child("tracking", "mlflow.json").read() or b"")["run_id"])


def history(uri: str, run_id: str, metric: str) -> list[tuple[int, float]]:
    """Steps and values that MLflow has, in order."""
    found = mlflow.MlflowClient(uri).get_metric_history(run_id, metric)
    return [(item.step, item.value) for item in sorted(found, key=lambda item: (item.step, item.timestamp))]


def tensorboard_events(folder: Path, name: str) -> list[Any]:
    """The events (step, value, wall_time) of the one attempt's files below `folder`."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (attempt,) = folder.iterdir()
    events = EventAccumulator(str(attempt), size_guidance={"scalars": 0})
    events.Reload()
    return list(events.Scalars(name))


def wandb_records(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]:
    """History, config and run of the one offline run below `folder`, from its transaction log."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = folder.rglob("*.wandb")
    history, config, run = [], {}, {}
    for data in records(file.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            history.append({"_step": record.history.step.num, **row})
        if record.HasField("run"):
            run = {"project": record.run.project, "display_name": record.run.display_name, "id": record.run.run_id}
            config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
    return history, config, run


def comet_metric(folder: Path, name: str) -> list[tuple[int, float]]:
    """Steps and values in the one offline archive below `folder`."""
    (file,) = folder.rglob("*.zip")
    with zipfile.ZipFile(file) as archive:
        lines = archive.read("messages.json").decode().splitlines()
    metrics = [json.loads(line)["payload"].get("metric") or {} for line in lines]
    return [(metric["step"], metric["metricValue"]) for metric in metrics if metric.get("metricName") == name]
