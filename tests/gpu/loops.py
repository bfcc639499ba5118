"""Train loops for the tests on GPUs."""

import time
from typing import Any

from devtools.notes import note


def dropping(config: dict[str, Any]) -> None:
    """Adam and dropout on the GPU, which also holds `bytes` for it; a checkpoint after each step. With `forgets`, the
    GPU's random numbers start over in each process."""
    import psutil
    import ray.train
    import torch
    from ray.train.torch import get_device, prepare_model

    from plugin_core.loops.torch import report, restore

    device = get_device()
    assert device.type == config.get("device", "cuda")
    model = prepare_model(
        torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.5), torch.nn.Linear(64, 1)), move_to_device=True
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    held = torch.empty(config.get("bytes", 0), dtype=torch.uint8, device=device)
    x = torch.linspace(-1, 1, 128 * 64, device=device).reshape(128, 64)
    first = restore(model, optimizer).get("step", -1) + 1
    if config.get("forgets"):
        torch.cuda.manual_seed(1)
    created = psutil.Process().create_time()
    for step in range(first, config["steps"]):
        if "trail" in config:
            note(config["trail"], rank=ray.train.get_context().get_world_rank(), step=step, created=created)
        time.sleep(config.get("step_s", 0))
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        report({"step": step, "loss": loss.item(), "held": len(held)}, model, optimizer)


def filling(config: dict[str, Any]) -> None:
    """Takes `share` of the GPU's memory, as a batch that is too large does."""
    import ray.train
    import torch

    total = torch.cuda.get_device_properties(0).total_memory
    taken = torch.empty(int(config["share"] * total), dtype=torch.uint8, device="cuda")
    ray.train.report({"share": config["share"], "bytes": len(taken)})


class OnGpu:
    """The predictor of the digits, which must have been given a GPU."""

    def __init__(self, checkpoint: Any):
        import torch

        from example_flows.digits_steps import load_model

        assert torch.cuda.device_count() == 1
        self.model = load_model(checkpoint).to("cuda")

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        import numpy as np
        import torch

        with torch.inference_mode():
            scores = self.model(torch.as_tensor(np.stack(batch["image"])).to("cuda"))
        return {"label": batch["label"], "prediction": scores.argmax(dim=1).cpu().numpy()}
