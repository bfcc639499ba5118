"""The state of a sharded PyTorch loop (FSDP, tensor parallel) in a checkpoint, each rank writing its own part, and back.

`restore` and `report` are used as those of `plugin_core.loops.torch`. The parts are PyTorch's Distributed Checkpoint: any
number of ranks reads what any other number wrote, so an elastic training goes on when it grows or shrinks.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from plugin_core.loops import upload as uploads
from plugin_core.loops.upload import Upload

_COUNTERS = "counters.json"


def report(
    metrics: dict[str, Any],
    model: Any,
    optimizer: Any = None,
    scheduler: Any = None,
    *,
    upload: Upload = "sync",
    checkpoint: bool = True,
) -> None:
    """`ray.train.report` with a checkpoint of each rank's part of model and optimizer, and rank 0's scheduler and counters.
    All ranks call it; the folder it writes into is the rank's own."""
    import ray.train
    import torch
    import torch.distributed.checkpoint as dcp

    rank = ray.train.get_context().get_world_rank()

    def write(folder: Path) -> None:
        dcp.save(_state(model, optimizer), storage_writer=dcp.FileSystemWriter(folder))
        if rank == 0:
            (folder / _COUNTERS).write_text(json.dumps(uploads.counters(metrics)))
            if scheduler is not None:
                torch.save(scheduler.state_dict(), folder / "scheduler.pt")

    uploads.report(metrics, write if checkpoint else None, upload)


def restore(model: Any, optimizer: Any = None, scheduler: Any = None) -> dict[str, int]:
    """Put everything back from the run's checkpoint, however many ranks wrote it; returns its counters, none where there is
    no checkpoint yet. A checkpoint of another run (`resume_from`) gives the model's weights alone, and no counters."""
    import ray.train
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import set_state_dict

    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return {}
    with checkpoint.as_directory() as folder:
        own = uploads.is_own(folder)
        state = _state(model, optimizer if own else None)
        dcp.load(state, storage_reader=dcp.FileSystemReader(folder))
        set_state_dict(
            model,
            optimizer if own and optimizer is not None else [],
            model_state_dict=state["model"],
            optim_state_dict=state.get("optimizer", {}),
        )
        if not own:
            return {}
        if scheduler is not None:
            scheduler.load_state_dict(torch.load(Path(folder, "scheduler.pt"), map_location="cpu", weights_only=True))
        counters: dict[str, int] = json.loads(Path(folder, _COUNTERS).read_text())
        return counters


def load(checkpoint: Any, model: Any) -> Any:
    """`model`, whole and in this one process, with the weights of a `ray.train.Checkpoint` that `report` made."""
    import torch.distributed.checkpoint as dcp

    state = {"model": model.state_dict()}
    with checkpoint.as_directory() as folder:
        dcp.load(state, storage_reader=dcp.FileSystemReader(folder), no_dist=True)
    model.load_state_dict(state["model"])
    return model.eval()


def _state(model: Any, optimizer: Any) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    weights, states = get_state_dict(model, optimizer if optimizer is not None else [])
    return {"model": weights, "optimizer": states} if optimizer is not None else {"model": weights}
