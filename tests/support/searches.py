"""A small search, and its table."""

import json
from pathlib import Path
from typing import Any

from devtools.steps import restore, save
from plugin_core import RunConfig, TrainSpec, TuneSpec


def loop(config: dict[str, Any]) -> None:
    """Adds `step` with each report; records each start in the folder `starts`; waits at report `hold` until `go` exists."""
    import time

    import ray.train

    state = restore() or {"epoch": -1, "value": 0.0}
    name = ray.train.get_context().get_experiment_name()
    if "starts" in config:
        with open(Path(config["starts"], name), "a") as file:
            file.write(f"{state['epoch'] + 1}\n")
    if config.get("fail") == config["step"]:
        raise ValueError(f"step {config['step']} is no good")
    value = state["value"]
    for epoch in range(state["epoch"] + 1, config["epochs"]):
        while config.get("hold") == [config["step"], epoch] and not Path(config["go"]).exists():
            time.sleep(0.1)
        value += config["step"]
        metrics = {"epoch": epoch, "value": value, "step": config["step"]}
        ray.train.report(metrics, checkpoint=save({"epoch": epoch, "value": value}))


def spec(tmp_path: Path, **fields: Any) -> TuneSpec:
    config = {"epochs": 3, "step": 0, **fields.pop("config", {})}
    defaults: dict[str, Any] = {
        "train": TrainSpec(framework="python", train_loop_per_worker=loop, train_loop_config=config),
        "param_space": {"train_loop_config": {"step": {"grid_search": [1, 3, 2]}}},
        "metric": "value",
        "mode": "max",
        "run_config": RunConfig(name="search", storage_path=str(tmp_path)),
    }
    return TuneSpec(**{**defaults, **fields})


def table(result: Any) -> dict[int, dict[str, Any]]:
    rows = json.loads(Path(result.table).read_text())
    return {row["config"]["train_loop_config"]["step"]: row for row in rows}
