"""Save and restore the state of a PyTorch loop in two lines:

    start = restore(model, optimizer, scheduler).get("epoch", -1) + 1
    for epoch in range(start, config["epochs"]):
        ...
        report({"epoch": epoch, "loss": loss}, model, optimizer, scheduler)

For checkpoints inside an epoch, also pass `rows` to `report`, and start at `rows.epoch` (see `plugin_core.loops.rows`).

For a model that is replicated on every rank (one process, or DistributedDataParallel). Call `restore` before or after
`prepare_model`, with the model on its device.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugin_core.loops import upload as uploads
from plugin_core.loops.upload import Upload

if TYPE_CHECKING:
    from plugin_core.loops.rows import ResumableRows

_STATE = "state.pt"


def report(
    metrics: dict[str, Any],
    model: Any,
    optimizer: Any = None,
    scheduler: Any = None,
    *,
    rows: ResumableRows | None = None,
    upload: Upload = "sync",
    checkpoint: bool = True,
) -> None:
    """`ray.train.report` with a checkpoint: rank 0's model, optimizer and scheduler, each rank's RNG state, and the
    integers in `metrics` as counters (epoch, step). `rows`: also their position; raises SpecError if the ranks'
    positions differ. `checkpoint=False` reports without one, e.g. between the checkpoints of a long epoch."""
    import ray.train
    import torch

    rank = ray.train.get_context().get_world_rank()

    def write(folder: Path) -> None:
        torch.save(_random_state(), folder / _random_file(rank))
        if rank == 0:
            state = {"model": _unwrapped(model).state_dict(), "counters": uploads.counters(metrics)}
            for name, part in (("optimizer", optimizer), ("scheduler", scheduler)):
                if part is not None:
                    state[name] = part.state_dict()
            torch.save(state, folder / _STATE)
        if rows is not None:
            rows.check_ranks()
            rows.save(folder)

    uploads.report(metrics, write if checkpoint else None, upload)


def restore(model: Any, optimizer: Any = None, scheduler: Any = None) -> dict[str, int]:
    """Restore everything from the run's checkpoint; return its counters, {} if there is no checkpoint yet.

    From another run's checkpoint (`resume_from`: a warm start) only the model's weights are restored, and no counters.
    Ranks absent from the checkpoint (there are more workers now) keep their RNG state.
    """
    import ray.train
    import torch

    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return {}
    with checkpoint.as_directory() as folder:
        state = torch.load(Path(folder, _STATE), map_location="cpu", weights_only=True)
        _unwrapped(model).load_state_dict(state["model"])
        if not uploads.is_own(checkpoint, folder):
            return {}
        for name, part in (("optimizer", optimizer), ("scheduler", scheduler)):
            if part is not None:
                part.load_state_dict(state[name])
        file = Path(folder, _random_file(ray.train.get_context().get_world_rank()))
        if file.exists():
            _set_random_state(torch.load(file, map_location="cpu", weights_only=True))
        counters: dict[str, int] = state["counters"]
        return counters


def load(checkpoint: Any, model: Any) -> Any:
    """Load the weights of a `ray.train.Checkpoint` made by `report` into `model`, on the CPU and ready to predict."""
    import torch

    with checkpoint.as_directory() as folder:
        model.load_state_dict(torch.load(Path(folder, _STATE), map_location="cpu", weights_only=True)["model"])
    return model.eval()


def _unwrapped(model: Any) -> Any:
    from torch.nn.parallel import DistributedDataParallel

    return model.module if isinstance(model, DistributedDataParallel) else model


def _random_file(rank: int) -> str:
    return f"random-{rank:05}.pt"


def _random_state() -> dict[str, Any]:
    """The RNG state of Python, NumPy, torch and this rank's device, in types that load without pickled code."""
    import numpy as np
    import torch

    kind, keys, *rest = np.random.get_state()
    state = {
        "python": random.getstate(),
        "numpy": (kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _set_random_state(state: dict[str, Any]) -> None:
    import numpy as np
    import torch

    random.setstate(state["python"])
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
