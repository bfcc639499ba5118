"""What a user of Ray Train's less common switches would write: a validation, a callback, a DataConfig."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from ray.train import UserCallback

from devtools.steps import restore, save


def validating_loop(config: dict[str, Any]) -> None:
    """Asks for a validation of every checkpoint, those of odd epochs with another argument."""
    import ray.train

    start = (restore() or {"epoch": -1})["epoch"] + 1
    for epoch in range(start, config["epochs"]):
        odd = ray.train.ValidationTaskConfig(fn_kwargs={"bonus": 10})
        checkpoint = save({"epoch": epoch})
        wanted = (odd if epoch % 2 else True) if checkpoint is not None else False
        ray.train.report({"epoch": epoch, "loss": 1 / (epoch + 1)}, checkpoint=checkpoint, validation=wanted)


def validate(checkpoint: Any, bonus: int = 0, file: str = "", until: str = "", fail_at: int = -1) -> dict[str, Any]:
    """`file` gets a line for each validation that begins; with `until`, it ends once that file exists."""
    with checkpoint.as_directory() as folder:
        epoch = json.loads(Path(folder, "state.json").read_text())["epoch"]
    if file:
        with Path(file).open("a") as stream:
            stream.write(f"{epoch}\n")
    while until and not Path(until).exists():
        time.sleep(0.1)
    if epoch == fail_at:
        raise ValueError(f"epoch {epoch} cannot be judged")
    return {"accuracy": epoch + bonus, "strange": float("nan")}


class Notify(UserCallback):
    """Writes a line for each report, then fails."""

    def __init__(self, file: str):
        self.file = file

    def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
        with Path(self.file).open("a") as stream:
            stream.write(f"{metrics[0]['epoch']} {Path(checkpoint.path).name if checkpoint else ''}\n")
        raise ConnectionError("nobody listens")


class Marks(UserCallback):
    """Notes the epoch of each report."""

    def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
        _note(metrics[0]["epoch"])


def order_loop(config: dict[str, Any]) -> None:
    """Reports the ids in the order this worker got them, epoch by epoch."""
    import ray.train

    for epoch in range(config["epochs"]):
        shard = ray.train.get_dataset_shard("train")
        ids = [int(i) for batch in shard.iter_batches(batch_size=7) for i in batch["id"]]
        ray.train.report({"epoch": epoch, "ids": ids})


def undivided() -> Any:
    """A `ray.train.DataConfig` that gives every worker all rows."""
    import ray.train

    return ray.train.DataConfig(datasets_to_split=[])


def deterministic_loop(config: dict[str, Any]) -> None:
    """Some steps of a small model on random data; reports the weights exactly."""
    import ray.train
    import ray.train.torch
    import torch

    model = ray.train.torch.prepare_model(
        torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(), torch.nn.Linear(32, 1))
    )
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(20):
        optimizer.zero_grad()
        loss = model(torch.randn(64, 16)).square().mean()
        loss.backward()
        optimizer.step()
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    ray.train.report(
        {
            "weights": weights.numpy().tobytes().hex(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
        }
    )


def _note(round_: int) -> None:
    with Path(os.environ["RAYTRAIN_TEST_NOTES"]).open("a") as stream:
        stream.write(f"{round_}\n")


def xgboost_notes() -> Any:
    """An XGBoost callback that notes each round."""
    import xgboost

    class Notes(xgboost.callback.TrainingCallback):
        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            _note(epoch)
            return False

    return Notes()


def xgboost_failing() -> Any:
    """An XGBoost callback that raises after the first round."""
    import xgboost

    class Failing(xgboost.callback.TrainingCallback):
        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            raise ValueError("the rounds are over")

    return Failing()


def lightgbm_notes() -> Any:
    """The same for LightGBM."""
    return lambda env: _note(env.iteration)


def torchft_loop(config: dict[str, Any]) -> None:
    """Ray's packaged torchft example; rank 1 kills its own worker once, at step `die_at`."""
    import ray.train
    import torchft
    from ray.train.v2.examples.pytorch.torchft_linear_example import train_func

    once, rank, step_of = Path(config["once"]), ray.train.get_context().get_world_rank(), torchft.Manager.current_step

    def current_step(self: Any) -> int:
        step: int = step_of(self)
        with Path(config["trail"]).open("a") as stream:
            stream.write(f"{rank} {os.getpid()} {step}\n")
        if rank == 1 and step >= config["die_at"] and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return step

    torchft.Manager.current_step = current_step
    train_func(config)
