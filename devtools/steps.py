"""Train loops and other user functions of the tests, as a user would write them: importable, and light at import."""

import json
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any


def save(state: dict[str, Any]) -> Any:
    """A checkpoint with `state` in it, only from rank 0."""
    import ray.train

    if ray.train.get_context().get_world_rank() != 0:
        return None
    folder = tempfile.mkdtemp()
    Path(folder, "state.json").write_text(json.dumps(state))
    return ray.train.Checkpoint(folder)


def restore() -> dict[str, Any] | None:
    import ray.train

    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return None
    with checkpoint.as_directory() as folder:
        state: dict[str, Any] = json.loads(Path(folder, "state.json").read_text())
        return state


def counting_loop(config: dict[str, Any]) -> None:
    """Counts epochs, checkpointing each; kills its own worker once at epoch `die_at`, raises at `raise_at`, and is done
    once the file `until` exists."""
    import numpy as np
    import ray.train

    start = (restore() or {"epoch": -1})["epoch"] + 1
    rank = ray.train.get_context().get_world_rank()
    for epoch in range(start, config["epochs"]):
        once = Path(config.get("once", "/nonexistent"))
        if rank == 1 and epoch == config.get("die_at") and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if epoch == config.get("raise_at"):
            raise ValueError(f"the data of epoch {epoch} is bad")
        metrics = {"epoch": epoch, "started_at": start, "loss": np.float32(1 / (epoch + 1)), "nan": float("nan")}
        ray.train.report(metrics, checkpoint=save({"epoch": epoch}))
        if Path(config.get("until", "/nonexistent")).exists():
            break
        time.sleep(config.get("sleep_s", 0))


def dying_loop(config: dict[str, Any]) -> None:
    """Its worker is killed at epoch 1, each time."""
    import ray.train

    if restore() is None:
        ray.train.report({"epoch": 0}, checkpoint=save({"epoch": 0}))
    os.kill(os.getpid(), signal.SIGKILL)


def loop_without_checkpoints(config: dict[str, Any]) -> None:
    import ray.train

    for epoch in range(config["epochs"]):
        ray.train.report({"epoch": epoch, "world": ray.train.get_context().get_world_size()})


def torch_loop(config: dict[str, Any]) -> None:
    """A linear model on the digits, one shard per rank; reports the accuracy and the sum of every rank's weights."""
    import ray.train
    import ray.train.torch
    import torch
    import torch.distributed
    from sklearn.datasets import load_digits

    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    x, y = (torch.tensor(array) for array in load_digits(return_X_y=True))
    x = x.float() / 16
    torch.manual_seed(rank)
    model = ray.train.torch.prepare_model(torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[rank::world]), y[rank::world]).backward()
        optimizer.step()
    mine = sum(p.sum() for p in model.parameters()).detach().reshape(1)
    everyones = [torch.zeros(1) for _ in range(world)]
    torch.distributed.all_gather(everyones, mine)
    accuracy = (model(x).argmax(1) == y).float().mean().item()
    ray.train.report({"world": world, "accuracy": accuracy, "weights": [float(w) for w in everyones]})


def evaluate(checkpoint: Any, dataset: Any, config: dict[str, Any]) -> dict[str, Any]:
    with checkpoint.as_directory() as folder:
        epoch = json.loads(Path(folder, "state.json").read_text())["epoch"]
    return {"epoch": epoch, "rows": dataset.count() if dataset is not None else 0}


class Predictor:
    def __init__(self, checkpoint: Any, offset: int = 0):
        with checkpoint.as_directory() as folder:
            self.add = json.loads(Path(folder, "state.json").read_text())["epoch"] + offset

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"x": batch["x"], "prediction": batch["x"] + self.add}
