"""Accelerate with DeepSpeed ZeRO-3: the Accelerator's `save_state` and `load_state`, each worker its own part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from example_flows.digits_steps import build_model
from example_flows.frameworks import data, deepspeed
from plugin_core import ScalingConfig, TrainSpec

SPEC = TrainSpec(
    framework="accelerate",
    train_loop_per_worker="example_flows.frameworks.accelerate_deepspeed:train_loop",
    train_loop_config={"epochs": 6, "lr": 0.003},
    deepspeed_config=deepspeed.SPEC.deepspeed_config,
    scaling_config=ScalingConfig(num_workers=2),
    seed=7,
)


def train_loop(config: dict[str, Any]) -> None:
    import ray.train
    import torch
    from accelerate import Accelerator, DeepSpeedPlugin, PartialState

    from plugin_core.loops.upload import report

    torch.set_num_threads(1)
    deepspeed.build_no_operators()
    if not torch.cuda.is_available():
        # set this beforehand: Accelerator(cpu=True) would ignore the plugin
        PartialState(cpu=True)
    accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config["deepspeed_config"]))
    network = build_model()
    optimizer = torch.optim.AdamW(network.parameters(), lr=config["lr"])
    model, optimizer = accelerator.prepare(network, optimizer)
    images, labels = (part.to(accelerator.device) for part in data.own_tensors())
    tests = [part.to(accelerator.device) for part in data.own_tensors("test")]
    first_epoch = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            accelerator.load_state(folder)
            first_epoch = int(Path(folder, "epoch.txt").read_text()) + 1

    for epoch in range(first_epoch, config["epochs"]):
        losses = []
        for rows in data.batches(len(images), model.train_micro_batch_size_per_gpu(), epoch):
            loss = torch.nn.functional.cross_entropy(model(images[rows]), labels[rows])
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        with torch.no_grad():
            known = accelerator.gather(model(tests[0]).argmax(dim=1) == tests[1]).float().mean().item()

        def save(folder: Path, epoch: int = epoch) -> None:
            accelerator.save_state(str(folder))
            if accelerator.is_main_process:
                (folder / "epoch.txt").write_text(str(epoch))

        report({"epoch": epoch, "loss": sum(losses) / len(losses), "accuracy": known}, save)


def evaluate(checkpoint: Any) -> dict[str, float]:
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    model = build_model()
    with checkpoint.as_directory() as folder:
        model.load_state_dict(get_fp32_state_dict_from_zero_checkpoint(folder))
    return {"accuracy": data.accuracy_of(model.eval())}
