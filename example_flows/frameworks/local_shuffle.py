"""PyTorch over a Ray Dataset: `iter_torch_batches` reads ahead, and shuffles within a buffer of each worker."""

from __future__ import annotations

from typing import Any

from example_flows.digits_steps import build_model
from example_flows.frameworks import data
from plugin_core import DatasetConfig, ScalingConfig, TrainSpec

SPEC = TrainSpec(
    framework="torch",
    train_loop_per_worker="example_flows.frameworks.local_shuffle:train_loop",
    train_loop_config={"epochs": 6, "lr": 0.003, "batch_size": 32},
    datasets={"train": DatasetConfig(function="example_flows.frameworks.data:digit_rows", kwargs={"part": "train"})},
    scaling_config=ScalingConfig(num_workers=2),
    seed=7,
)


def train_loop(config: dict[str, Any]) -> None:
    import ray.train
    import torch
    from ray.train.torch import get_device, prepare_model

    from plugin_core.loops.torch import report, restore

    torch.set_num_threads(1)
    device = get_device()
    model = prepare_model(build_model())
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    shard = ray.train.get_dataset_shard("train")
    test_images, test_labels = (torch.as_tensor(part).to(device) for part in data.digits("test"))

    for epoch in range(restore(model, optimizer).get("epoch", -1) + 1, config["epochs"]):
        losses = []
        batches = shard.iter_torch_batches(
            batch_size=config["batch_size"],
            drop_last=True,
            device=device,
            local_shuffle_buffer_size=8 * config["batch_size"],
            local_shuffle_seed=epoch,
        )
        for batch in batches:
            loss = torch.nn.functional.cross_entropy(model(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        with torch.inference_mode():
            known = (model(test_images).argmax(dim=1) == test_labels).float().mean().item()
        report({"epoch": epoch, "loss": sum(losses) / len(losses), "accuracy": known}, model, optimizer)


def evaluate(checkpoint: Any) -> dict[str, float]:
    from plugin_core.loops.torch import load

    return {"accuracy": data.accuracy_of(load(checkpoint, build_model()))}
