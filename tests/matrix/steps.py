"""The functions of the smoke test: they need nothing but Ray Train."""

import json
import os
import signal
import tempfile
from pathlib import Path
from typing import Any


def loop(config: dict[str, Any]) -> None:
    """Counts; rank 1 is killed once, after the checkpoint of step 1."""
    import ray.train

    rank, step = ray.train.get_context().get_world_rank(), -1
    if (checkpoint := ray.train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            step = json.loads(Path(folder, "state.json").read_text())
    first = step + 1
    for step in range(first, config["steps"]):
        made = None
        if rank == 0:
            folder = tempfile.mkdtemp()
            Path(folder, "state.json").write_text(json.dumps(step))
            made = ray.train.Checkpoint(folder)
        ray.train.report({"step": step, "first": first, "workers": ray.train.get_context().get_world_size()}, made)
        if rank == 1 and step == 1 and not (killed := Path(config["killed"])).exists():
            ray.train.get_all_reported_checkpoints()  # the checkpoint is registered
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def evaluate(checkpoint: Any, dataset: Any, config: dict[str, Any]) -> dict[str, Any]:
    with checkpoint.as_directory() as folder:
        return {"step": json.loads(Path(folder, "state.json").read_text())}


def training(storage: str, killed: str) -> dict[str, Any]:
    """The spec of a training with two workers; its name comes from the engine, or is `smoke`."""
    return {
        "framework": "python",
        "train_loop_per_worker": "steps:loop",
        "train_loop_config": {"steps": 4, "killed": killed},
        "scaling_config": {"num_workers": 2},
        "run_config": {"storage_path": storage},
    }


def check(trained: Any, evaluated: Any) -> None:
    """Raise AssertionError unless the training lost a worker, went on after step 1, and its checkpoint was evaluated."""
    assert trained["metrics"] == {"step": 3, "first": 2, "workers": 2}, trained
    assert evaluated["metrics"] == {"step": 3}, evaluated
    print("SMOKE PASSED")
