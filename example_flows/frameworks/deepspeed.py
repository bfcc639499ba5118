"""DeepSpeed ZeRO-3: model, gradients and optimizer in parts, one per worker; each writes its part of the checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from example_flows.digits_steps import build_model
from example_flows.frameworks import data
from plugin_core import ScalingConfig, TrainSpec

SPEC = TrainSpec(
    framework="deepspeed",
    train_loop_per_worker="example_flows.frameworks.deepspeed:train_loop",
    train_loop_config={"epochs": 6, "lr": 0.003},
    deepspeed_config={
        "train_micro_batch_size_per_gpu": 32,
        "zero_optimization": {"stage": 3},
        # on CPUs DeepSpeed would build its own optimizer; torch's is good enough
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    },
    scaling_config=ScalingConfig(num_workers=2),
    seed=7,
)


def build_no_operators() -> None:
    """Skip a minute of compiling collectives that would be faster on CPUs."""
    import deepspeed
    import torch

    if not torch.cuda.is_available():
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def train_loop(config: dict[str, Any]) -> None:
    import deepspeed
    import ray.train
    import torch

    from plugin_core.loops.upload import report

    torch.set_num_threads(1)
    build_no_operators()
    network = build_model()
    optimizer = torch.optim.AdamW(network.parameters(), lr=config["lr"])
    engine, *_ = deepspeed.initialize(model=network, optimizer=optimizer, config=config["deepspeed_config"])
    images, labels = (part.to(engine.device) for part in data.own_tensors())
    test_images, test_labels = (torch.as_tensor(part).to(engine.device) for part in data.digits("test"))
    first_epoch = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            _, kept = engine.load_checkpoint(folder)
        first_epoch = kept["epoch"] + 1

    for epoch in range(first_epoch, config["epochs"]):
        losses = []
        for rows in data.batches(len(images), engine.train_micro_batch_size_per_gpu(), epoch):
            loss = torch.nn.functional.cross_entropy(engine(images[rows]), labels[rows])
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
        with torch.no_grad():
            known = (engine(test_images).argmax(dim=1) == test_labels).float().mean().item()

        def save(folder: Path, epoch: int = epoch) -> None:
            engine.save_checkpoint(str(folder), client_state={"epoch": epoch})

        report({"epoch": epoch, "loss": sum(losses) / len(losses), "accuracy": known}, save)


def evaluate(checkpoint: Any) -> dict[str, float]:
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    model = build_model()
    with checkpoint.as_directory() as folder:
        model.load_state_dict(get_fp32_state_dict_from_zero_checkpoint(folder))
    return {"accuracy": data.accuracy_of(model.eval())}
