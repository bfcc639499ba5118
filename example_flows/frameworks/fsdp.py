"""PyTorch's FSDP (`fully_shard`): each worker holds a part of the model, and writes that part of the checkpoint."""

from __future__ import annotations

from typing import Any

from example_flows.frameworks import data
from plugin_core import ScalingConfig, TrainSpec

SPEC = TrainSpec(
    framework="torch",
    train_loop_per_worker="example_flows.frameworks.fsdp:train_loop",
    train_loop_config={"epochs": 6, "lr": 0.003, "batch_size": 32},
    scaling_config=ScalingConfig(num_workers=2),
    seed=7,
)


def build_model() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))


def train_loop(config: dict[str, Any]) -> None:
    import ray.train
    import torch
    from ray.train.torch import get_device
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from plugin_core.loops.sharded import report, restore

    torch.set_num_threads(1)
    device = get_device()
    mesh = init_device_mesh(device.type, (ray.train.get_context().get_world_size(),))
    model = build_model().to(device)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    images, labels = (part.to(device) for part in data.own_tensors())
    test_images, test_labels = (torch.as_tensor(part).to(device) for part in data.digits("test"))

    for epoch in range(restore(model, optimizer).get("epoch", -1) + 1, config["epochs"]):
        losses = []
        for rows in data.batches(len(images), config["batch_size"], epoch):
            loss = torch.nn.functional.cross_entropy(model(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        with torch.no_grad():
            known = (model(test_images).argmax(dim=1) == test_labels).float().mean().item()
        report({"epoch": epoch, "loss": sum(losses) / len(losses), "accuracy": known}, model, optimizer)


def evaluate(checkpoint: Any) -> dict[str, float]:
    from plugin_core.loops.sharded import load

    return {"accuracy": data.accuracy_of(load(checkpoint, build_model()))}
