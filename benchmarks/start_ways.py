"""One start, one way: `python -m benchmarks.start_ways WAY MARKS FOLDER`; see `start`.

Each is a process of its own, as a user starts it. Its function writes the time at which it runs to the folder MARKS.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

WORKERS = 2


def mark(marks: str, rank: int) -> None:
    Path(marks, f"{rank}").write_text(repr(time.time()))


def train_loop(config: dict[str, Any]) -> None:
    import ray.train

    mark(config["marks"], ray.train.get_context().get_world_rank())
    step()
    ray.train.report({"done": 1})


def step() -> None:
    """One step of a small network whose gradients all workers average."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    model(torch.ones(4, 8)).sum().backward()


def evaluate(checkpoint: Any, dataset: Any, config: dict[str, Any]) -> dict[str, float]:
    mark(config["marks"], 0)
    return {"accuracy": 1.0}


def torchrun(marks: str, folder: str) -> None:
    """Runs in each of the processes that torchrun starts."""
    import torch.distributed

    torch.distributed.init_process_group("gloo")
    mark(marks, torch.distributed.get_rank())
    step()
    torch.distributed.destroy_process_group()


def bare(marks: str, folder: str) -> None:
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    ray.init(num_cpus=2 * WORKERS, include_dashboard=False)
    TorchTrainer(
        train_loop,
        train_loop_config={"marks": marks},
        scaling_config=ScalingConfig(num_workers=WORKERS),
        run_config=RunConfig(name=Path(marks).name, storage_path=folder),
    ).fit()


def train(marks: str, folder: str) -> None:
    from plugin_core import RunConfig, ScalingConfig, TrainSpec, run

    spec = TrainSpec(
        framework="torch",
        train_loop_per_worker="benchmarks.start_ways:train_loop",
        train_loop_config={"marks": marks},
        scaling_config=ScalingConfig(num_workers=WORKERS),
        run_config=RunConfig(name=Path(marks).name, storage_path=folder),
    )
    run(spec, progress=False)


def evaluation(marks: str, folder: str) -> None:
    from plugin_core import EvaluateSpec, RunConfig, run

    spec = EvaluateSpec(
        evaluate="benchmarks.start_ways:evaluate",
        checkpoint=f"{folder}/a-checkpoint",
        config={"marks": marks},
        run_config=RunConfig(name=Path(marks).name, storage_path=folder),
    )
    run(spec, progress=False)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    {"torchrun": torchrun, "bare": bare, "train": train, "evaluation": evaluation}[sys.argv[1]](*sys.argv[2:4])
