"""Report a checkpoint that a loop has written to a folder."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from plugin_core.storage.scratch import scratch

#: "sync": `report` returns once the checkpoint is on storage and can be resumed from. "async": it returns at once and the
#: checkpoint is uploaded during training; a kill before that costs one more interval.
Upload = Literal["sync", "async"]
_RUN = "run.txt"


def report(metrics: dict[str, Any], write: Callable[[Path], None] | None = None, upload: Upload = "sync") -> None:
    """`ray.train.report` with a checkpoint of what `write` puts into an empty folder. All ranks must call it; a rank
    without `write` adds nothing to the checkpoint, and Ray merges the others' files."""
    import ray.train
    from ray.train import CheckpointUploadMode

    if upload not in ("sync", "async"):
        raise ValueError(f"upload: got {upload!r}; expected sync, async")
    if write is None:
        ray.train.report(metrics)
        return
    folder = Path(tempfile.mkdtemp(prefix="checkpoint-", dir=scratch()))
    uploading = False
    try:
        write(folder)
        if ray.train.get_context().get_world_rank() == 0:
            (folder / _RUN).write_text(run_name())
        checkpoint = ray.train.Checkpoint.from_directory(folder)
        if upload == "sync":
            ray.train.report(metrics, checkpoint=checkpoint)
        else:
            mode = CheckpointUploadMode.ASYNC
            ray.train.report(
                metrics, checkpoint=checkpoint, checkpoint_upload_mode=mode, delete_local_checkpoint_after_upload=True
            )
            uploading = True  # the upload deletes the folder when done
    finally:
        if not uploading:
            shutil.rmtree(folder, ignore_errors=True)


def run_name() -> str:
    """The name of the run that this worker trains in."""
    import ray.train

    return str(ray.train.get_context().get_experiment_name())


def is_warm_start(checkpoint: Any) -> bool:
    """Whether the worker got the checkpoint because the spec names it (`resume_from`). Its run may have this one's name."""
    return bool(getattr(checkpoint, "is_warm_start", False))


def own_checkpoint() -> Any:
    """The checkpoint to resume from; None if there is none yet, or only a warm start."""
    import ray.train

    checkpoint = ray.train.get_checkpoint()
    return None if is_warm_start(checkpoint) else checkpoint


def is_own(checkpoint: Any, folder: str | Path) -> bool:
    """Whether a checkpoint, whose files are in the folder, belongs to this run (to resume from) rather than to another run
    (a warm start)."""
    file = Path(folder, _RUN)
    return not is_warm_start(checkpoint) and file.exists() and file.read_text() == run_name()


def counters(metrics: dict[str, Any]) -> dict[str, int]:
    """The integer metrics, used as counters (epoch, step)."""
    return {name: value for name, value in metrics.items() if isinstance(value, int) and not isinstance(value, bool)}
