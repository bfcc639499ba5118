"""PyTorch: the digits' model on every worker, with averaged gradients; metrics of all workers by torchmetrics."""

from __future__ import annotations

from typing import Any

from example_flows.digits_steps import build_model
from example_flows.frameworks import data
from plugin_core import ScalingConfig, TrainSpec

SPEC = TrainSpec(
    framework="torch",
    train_loop_per_worker="example_flows.frameworks.torch:train_loop",
    train_loop_config={"epochs": 6, "lr": 0.003, "batch_size": 32},
    scaling_config=ScalingConfig(num_workers=2),
    seed=7,
)


def train_loop(config: dict[str, Any]) -> None:
    import torch
    from ray.train.torch import get_device, prepare_model
    from torchmetrics.classification import MulticlassAccuracy

    from plugin_core.loops.torch import report, restore

    torch.set_num_threads(1)
    device = get_device()
    model = prepare_model(build_model())
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    images, labels = (part.to(device) for part in data.own_tensors())
    test_images, test_labels = (part.to(device) for part in data.own_tensors("test"))
    accuracy = MulticlassAccuracy(num_classes=10, average="micro").to(device)

    for epoch in range(restore(model, optimizer).get("epoch", -1) + 1, config["epochs"]):
        losses = []
        for rows in data.batches(len(images), config["batch_size"], epoch):
            loss = torch.nn.functional.cross_entropy(model(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        with torch.inference_mode():
            accuracy.reset()
            accuracy.update(model(test_images), test_labels)
        # compute() combines the counts of all workers
        metrics = {"epoch": epoch, "loss": sum(losses) / len(losses), "accuracy": accuracy.compute().item()}
        report(metrics, model, optimizer)


def evaluate(checkpoint: Any) -> dict[str, float]:
    from plugin_core.loops.torch import load

    return {"accuracy": data.accuracy_of(load(checkpoint, build_model()))}
