"""Hugging Face Accelerate: the loop is the user's, the Accelerator places model, optimizer and batches."""

from __future__ import annotations

from typing import Any

from example_flows.digits_steps import build_model
from example_flows.frameworks import data
from plugin_core import ScalingConfig, TrainSpec

SPEC = TrainSpec(
    framework="accelerate",
    train_loop_per_worker="example_flows.frameworks.accelerate:train_loop",
    train_loop_config={"epochs": 6, "lr": 0.003, "batch_size": 32},
    scaling_config=ScalingConfig(num_workers=2),
    seed=7,
)


def train_loop(config: dict[str, Any]) -> None:
    import torch
    from accelerate import Accelerator

    from plugin_core.loops.torch import report, restore

    torch.set_num_threads(1)
    # on a machine without GPUs this must be set, or each worker trains alone
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    network = build_model()
    model, optimizer = accelerator.prepare(network, torch.optim.Adam(network.parameters(), lr=config["lr"]))
    images, labels = (part.to(accelerator.device) for part in data.own_tensors())
    tests = [part.to(accelerator.device) for part in data.own_tensors("test")]

    for epoch in range(restore(model, optimizer).get("epoch", -1) + 1, config["epochs"]):
        losses = []
        for rows in data.batches(len(images), config["batch_size"], epoch):
            loss = torch.nn.functional.cross_entropy(model(images[rows]), labels[rows])
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            losses.append(loss.item())
        with torch.inference_mode():
            known = accelerator.gather(model(tests[0]).argmax(dim=1) == tests[1]).float().mean().item()
        report({"epoch": epoch, "loss": sum(losses) / len(losses), "accuracy": known}, model, optimizer)


def evaluate(checkpoint: Any) -> dict[str, float]:
    from plugin_core.loops.torch import load

    return {"accuracy": data.accuracy_of(load(checkpoint, build_model()))}
