"""A train function that restores all of its state, except what `forgets` names."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

EPOCHS, ROWS = 8, 32


def learning(config: dict[str, Any]) -> None:
    import ray.train
    import torch
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    forgets = config["forgets"]
    rank, world = ray.train.get_context().get_world_rank(), ray.train.get_context().get_world_size()
    data = TensorDataset(torch.arange(ROWS * 4, dtype=torch.float32).reshape(ROWS, 4) / 100)
    sampler: Any = DistributedSampler(data, world, rank, shuffle=True, seed=1)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=4)
    first = 0
    checkpoint = ray.train.get_checkpoint() if forgets != "checkpoint" else None
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder, "state.pt"), weights_only=True)
        parts = {"weights": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
        for name, part in parts.items():
            if forgets != name:
                part.load_state_dict(state[name])
        first = 0 if forgets == "epoch" else state["epoch"] + 1
        if forgets == "optimizer":
            for group in optimizer.param_groups:
                group["lr"] = scheduler.get_last_lr()[0]
        if forgets != "random numbers":
            torch.set_rng_state(state["random"])
    for epoch in range(first, EPOCHS):
        sampler.set_epoch(epoch - first if forgets == "sampler" else epoch)
        for (batch,) in loader:
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        scheduler.step()
        made = None
        if rank == 0:
            folder = tempfile.mkdtemp()
            states = {"weights": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
            kept = {name: part.state_dict() for name, part in states.items()}
            torch.save({**kept, "epoch": epoch, "random": torch.get_rng_state()}, Path(folder, "state.pt"))
            made = ray.train.Checkpoint(folder)
        ray.train.report({"epoch": epoch, "loss": loss.item(), "at": time.time()}, checkpoint=made)


def within_epochs(config: dict[str, Any]) -> None:
    """Reports within epochs, and resumes there by taking batches only to skip them. `forgets` names one of its states that
    `learning` does not have: the step count of a scaler with a constant scale, or a scheduler that follows the loss."""
    import ray.train
    import torch
    from torch.utils.data import DataLoader, RandomSampler, TensorDataset

    data = TensorDataset(torch.arange(ROWS * 4, dtype=torch.float32).reshape(ROWS, 4) / 100)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=100)
    scaler = torch.amp.GradScaler("cpu")
    parts = {"model": model, "optimizer": optimizer, "plateau": plateau, "scaler": scaler}
    done = 0
    if (checkpoint := ray.train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            state = torch.load(Path(folder, "state.pt"), weights_only=True)
        for name in set(parts) - {config["forgets"]}:
            parts[name].load_state_dict(state[name])
        done = state["done"]
    step = done // 8 * 8
    for epoch in range(done // 8, EPOCHS):
        order = RandomSampler(data, generator=torch.Generator().manual_seed(epoch))
        for (batch,) in DataLoader(data, batch_size=4, sampler=order):
            step += 1
            if step <= done:
                continue
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if step % 3 == 0:
                plateau.step(loss.item())
                folder = tempfile.mkdtemp()
                kept = {name: part.state_dict() for name, part in parts.items()}
                torch.save({**kept, "done": step}, Path(folder, "state.pt"))
                ray.train.report({"step": step, "loss": loss.item()}, checkpoint=ray.train.Checkpoint(folder))


def ending_early(config: dict[str, Any]) -> None:
    """Mistakes the total number of steps for the number of steps left."""
    import ray.train

    done = 0
    if (checkpoint := ray.train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            done = json.loads(Path(folder, "state.json").read_text())
    for number in range(done + 1, 6 - done // 2):
        folder = tempfile.mkdtemp()
        Path(folder, "state.json").write_text(json.dumps(number))
        ray.train.report({"step": number}, checkpoint=ray.train.Checkpoint(folder))


def unseeded(config: dict[str, Any]) -> None:
    """Learns something else each time."""
    import os

    import ray.train
    import torch

    torch.manual_seed(int.from_bytes(os.urandom(4)))
    learning({**config, "forgets": ""})
    ray.train.report({"done": 1})


def keeping_nothing(config: dict[str, Any]) -> None:
    import ray.train

    for step in range(8):
        ray.train.report({"step": step})


def counting(config: dict[str, Any]) -> None:
    """Without PyTorch: a sum that is kept in a checkpoint; with `forgets`, it starts from 0 again."""
    import ray.train

    step, total = -1, 0
    if (checkpoint := ray.train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            step, total = json.loads(Path(folder, "state.json").read_text())
        total = 0 if config["forgets"] else total
    for number in range(step + 1, 8):
        total += number
        folder = tempfile.mkdtemp()
        Path(folder, "state.json").write_text(json.dumps([number, total]))
        ray.train.report({"step": number, "total": total}, checkpoint=ray.train.Checkpoint(folder))
