"""Accelerate with FSDP: each worker holds a part of the model, and writes that part of the checkpoint."""

from __future__ import annotations

from typing import Any

from example_flows.frameworks import data
from example_flows.frameworks.fsdp import build_model
from plugin_core import ScalingConfig, TrainSpec

SPEC = TrainSpec(
    framework="accelerate",
    train_loop_per_worker="example_flows.frameworks.accelerate_fsdp:train_loop",
    train_loop_config={"epochs": 6, "lr": 0.003, "batch_size": 32},
    scaling_config=ScalingConfig(num_workers=2),
    seed=7,
)


def build_accelerator() -> Any:
    import torch
    from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin, PartialState

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="size_based_wrap", min_num_params=1000, cpu_ram_efficient_loading=False
    )
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), fsdp_plugin=plugin)
    if not torch.cuda.is_available():
        # on CPUs Accelerate ignores the plugin, although everything the plugin does works there too
        for state in (PartialState(), accelerator.state):
            state.distributed_type = DistributedType.FSDP
        accelerator.state.fsdp_plugin = plugin
    return accelerator


def train_loop(config: dict[str, Any]) -> None:
    import torch

    from plugin_core.loops.sharded import report, restore

    torch.set_num_threads(1)
    accelerator = build_accelerator()
    network = build_model()
    model, prepared = accelerator.prepare(network, torch.optim.Adam(network.parameters(), lr=config["lr"]))
    optimizer = prepared.optimizer
    images, labels = (part.to(accelerator.device) for part in data.own_tensors())
    tests = [part.to(accelerator.device) for part in data.own_tensors("test")]

    for epoch in range(restore(model, optimizer).get("epoch", -1) + 1, config["epochs"]):
        losses = []
        for rows in data.batches(len(images), config["batch_size"], epoch):
            loss = torch.nn.functional.cross_entropy(model(images[rows]), labels[rows])
            prepared.zero_grad()
            accelerator.backward(loss)
            prepared.step()
            losses.append(loss.item())
        with torch.no_grad():
            known = accelerator.gather(model(tests[0]).argmax(dim=1) == tests[1]).float().mean().item()
        report({"epoch": epoch, "loss": sum(losses) / len(losses), "accuracy": known}, model, optimizer)


def evaluate(checkpoint: Any) -> dict[str, float]:
    from plugin_core.loops.sharded import load

    return {"accuracy": data.accuracy_of(load(checkpoint, build_model()))}
