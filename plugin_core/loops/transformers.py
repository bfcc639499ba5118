"""A Hugging Face Trainer that reports, checkpoints and resumes, in one line:

    train(Trainer(model=model, args=TrainingArguments(...), train_dataset=..., eval_dataset=...))

Ray's own `RayTrainReportCallback` copies the checkpoint on every rank as it finds it, without waiting for the ranks that
still write; here all wait for each other, and each node uploads once.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from plugin_core.loops import upload as uploads
from plugin_core.loops.upload import Upload

#: Where in a checkpoint the Trainer's own is; Ray's callback has the same.
CHECKPOINT_NAME = "checkpoint"
_WORLD = "world.json"


def train(trainer: Any, upload: Upload = "sync") -> Any:
    """`trainer.train()`, from the run's checkpoint on where there is one, with a report at each save of the Trainer.

    A checkpoint of another run (`resume_from`: a warm start) gives the model's weights alone. The `output_dir` of a node's
    workers has to be one folder. Datasets of Ray Data are taken as Ray's `prepare_trainer` takes them. Another number of
    workers goes on in the same epoch, its learning rate where it was.
    """
    import ray.train
    from ray.train.huggingface.transformers import prepare_trainer

    trainer.add_callback(ReportCallback(upload))
    trainer = prepare_trainer(trainer)
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return trainer.train()
    with checkpoint.as_directory() as folder:
        source = Path(folder, CHECKPOINT_NAME)
        if uploads.is_own(folder):
            with tempfile.TemporaryDirectory() as scratch:
                return trainer.train(resume_from_checkpoint=str(_in_steps_of_this_world(trainer, source, Path(scratch))))
        trainer.model.load_state_dict(type(trainer.model).from_pretrained(source).state_dict())
    return trainer.train()


class ReportCallback(TrainerCallback):
    """Reports at each save what was logged last, with the checkpoint; and at the end, if something was logged since."""

    def __init__(self, upload: Upload = "sync"):
        self._upload = upload
        self._reported = -1

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        _wait_for_all()
        source = Path(args.output_dir, f"checkpoint-{state.global_step}")

        def write(folder: Path) -> None:
            shutil.copytree(source, folder / CHECKPOINT_NAME)
            world = {"workers": _workers(), "steps_per_epoch": _steps_per_epoch(args, kwargs.get("train_dataloader"))}
            (folder / CHECKPOINT_NAME / _WORLD).write_text(json.dumps(world))

        self._reported = state.global_step
        uploads.report(_logged(state), write if _has_part(args) else None, self._upload)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step > self._reported and state.log_history:
            self._reported = state.global_step
            uploads.report(_logged(state))


def _in_steps_of_this_world(trainer: Any, source: Path, scratch: Path) -> Path:
    """The checkpoint, its steps counted as so many workers count them as there are now.

    The Trainer tells by its optimizer steps how many epochs are done, and how far its learning rate is; fewer workers take
    more steps for an epoch. A training that is bounded by `max_steps`, or whose data has no length, keeps its count.
    """
    import torch

    file = source / _WORLD
    before = json.loads(file.read_text()) if file.exists() else None
    if before is None or before["workers"] == _workers() or not before["steps_per_epoch"] or trainer.args.max_steps > 0:
        return source
    state = json.loads((source / "trainer_state.json").read_text())
    now = _steps_per_epoch(trainer.args, trainer.get_train_dataloader())
    steps = round(state["global_step"] / before["steps_per_epoch"] * now)
    (scratch / "trainer_state.json").write_text(json.dumps(state | {"global_step": steps}))
    schedule = torch.load(source / "scheduler.pt", weights_only=True)
    if "lr_lambdas" in schedule:  # the Trainer's own schedules; one that follows the metrics counts evaluations
        torch.save(schedule | {"last_epoch": steps, "_step_count": steps + 1}, scratch / "scheduler.pt")
    for file in source.iterdir():
        if not (scratch / file.name).exists():
            (scratch / file.name).symlink_to(file)
    return scratch


def _workers() -> int:
    import ray.train

    return int(ray.train.get_context().get_world_size())


def _steps_per_epoch(args: Any, loader: Any) -> int:
    """0: the data has no length."""
    try:
        return math.ceil(len(loader) / int(args.gradient_accumulation_steps))
    except TypeError:
        return 0


def _logged(state: Any) -> dict[str, Any]:
    metrics: dict[str, Any] = {}
    for entry in state.log_history:
        metrics.update(entry)
    return metrics


def _has_part(args: Any) -> bool:
    """Whether this rank uploads: rank 0, and where the state is sharded the first rank of each node."""
    import ray.train

    context = ray.train.get_context()
    sharded = bool(args.deepspeed or args.fsdp)
    return context.get_world_rank() == 0 or (sharded and context.get_local_rank() == 0)


def _wait_for_all() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.barrier()
