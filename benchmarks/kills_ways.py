"""The loop of `kills`, three ways: `python -m benchmarks.kills_ways WAY FOLDER`. It ends once FOLDER/stop exists."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from devtools.notes import note

WORKERS = 2
STEP_S = 0.2
#: Steps between two checkpoints.
EVERY = 25


def steps(folder: str, rank: int, first: int, save: Any) -> None:
    """Steps in which the ranks wait for each other, as in a training. `save` keeps a checkpoint of a step."""
    import torch
    import torch.distributed as dist

    stop, step = Path(folder, "stop"), first
    while True:
        told = torch.tensor([float(stop.exists())])
        dist.all_reduce(told)  # all ranks end with the same step
        if told.item():
            return
        time.sleep(STEP_S)
        note(f"{folder}/trail.jsonl", rank=rank, step=step)
        save(step, step % EVERY == EVERY - 1)
        step += 1


def train_loop(config: dict[str, Any]) -> None:
    import ray.train

    context, checkpoint = ray.train.get_context(), ray.train.get_checkpoint()
    first = 0
    if checkpoint is not None:
        with checkpoint.as_directory() as place:
            first = json.loads(Path(place, "state.json").read_text())["step"] + 1

    def save(step: int, kept: bool) -> None:
        if not kept:
            return
        made = None
        if context.get_world_rank() == 0:
            place = tempfile.mkdtemp()
            Path(place, "state.json").write_text(json.dumps({"step": step}))
            made = ray.train.Checkpoint(place)
        ray.train.report({"step": step}, checkpoint=made)

    steps(config["folder"], context.get_world_rank(), first, save)


def bare(folder: str) -> None:
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    ray.init(address=os.environ["BARE_ADDRESS"])
    TorchTrainer(
        train_loop,
        train_loop_config={"folder": folder},
        scaling_config=ScalingConfig(num_workers=WORKERS),
        run_config=RunConfig(name="run", storage_path=f"{folder}/runs", failure_config=FailureConfig(max_failures=-1)),
    ).fit()


def torchrun(folder: str) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, kept = dist.get_rank(), Path(folder, "state.json")
    first = json.loads(kept.read_text())["step"] + 1 if kept.exists() else 0

    def save(step: int, keep: bool) -> None:
        if keep and rank == 0:
            half = kept.with_suffix(".half")
            half.write_text(json.dumps({"step": step}))
            half.replace(kept)

    steps(folder, rank, first, save)
    dist.destroy_process_group()


if __name__ == "__main__":
    {"bare": bare, "torchrun": torchrun}[sys.argv[1]](sys.argv[2])
