"""Horovod (with PyTorch): gradients averaged by `hvd.DistributedOptimizer`. Horovod is built by `make horovod`."""

from __future__ import annotations

from typing import Any

from example_flows.digits_steps import build_model
from example_flows.frameworks import data
from plugin_core import ScalingConfig, TrainSpec

SPEC = TrainSpec(
    framework="horovod",
    train_loop_per_worker="example_flows.frameworks.horovod:train_loop",
    train_loop_config={"epochs": 6, "lr": 0.003, "batch_size": 32},
    scaling_config=ScalingConfig(num_workers=2),
    seed=7,
)


def train_loop(config: dict[str, Any]) -> None:
    import horovod.torch as hvd
    import torch

    from plugin_core.loops.torch import report, restore

    torch.set_num_threads(1)
    hvd.init()
    device = torch.device("cuda", hvd.local_rank()) if torch.cuda.is_available() else torch.device("cpu")
    model = build_model().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    first_epoch = restore(model, optimizer).get("epoch", -1) + 1
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    images, labels = (part.to(device) for part in data.own_tensors())
    tests = [part.to(device) for part in data.own_tensors("test")]

    for epoch in range(first_epoch, config["epochs"]):
        losses = []
        for rows in data.batches(len(images), config["batch_size"], epoch):
            loss = torch.nn.functional.cross_entropy(model(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        with torch.inference_mode():
            known = hvd.allreduce((model(tests[0]).argmax(dim=1) == tests[1]).float().mean()).item()
        report({"epoch": epoch, "loss": sum(losses) / len(losses), "accuracy": known}, model, optimizer)


def evaluate(checkpoint: Any) -> dict[str, float]:
    from plugin_core.loops.torch import load

    return {"accuracy": data.accuracy_of(load(checkpoint, build_model()))}
