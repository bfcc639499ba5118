"""Save and restore the state of a sharded PyTorch loop (FSDP, tensor parallel); each rank writes its own shard.

Use `restore` and `report` like those of `plugin_core.loops.torch`. The format is PyTorch's Distributed Checkpoint: any
number of ranks can read what any other number wrote, so an elastic training continues when it grows or shrinks.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugin_core.loops import upload as uploads
from plugin_core.loops.upload import Upload

if TYPE_CHECKING:
    from plugin_core.loops.rows import ResumableRows

_COUNTERS = "counters.json"


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
    """`ray.train.report` with a checkpoint: each rank's shard of model and optimizer, rank 0's scheduler and counters, and
    the position of `rows`. All ranks must call it; each writes into its own folder. Raises SpecError if the ranks'
    positions differ."""
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
        if rows is not None:
            rows.check_ranks()
            rows.save(folder)

    uploads.report(metrics, write if checkpoint else None, upload)


def restore(model: Any, optimizer: Any = None, scheduler: Any = None) -> dict[str, int]:
    """Restore everything from the run's checkpoint, however many ranks wrote it; return its counters, {} if there is no
    checkpoint yet. From another run's checkpoint (`resume_from`) only the model's weights are restored, and no counters."""
    import ray.train
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import set_state_dict

    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return {}
    with checkpoint.as_directory() as folder:
        own = uploads.is_own(checkpoint, folder)
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
    """Load the weights of a `ray.train.Checkpoint` made by `report` into `model`, unsharded and in this process."""
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
