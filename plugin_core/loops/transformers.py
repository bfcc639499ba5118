"""Run a Hugging Face Trainer with reports, checkpoints and resume, in one line:

    train(Trainer(model=model, args=TrainingArguments(...), train_dataset=..., eval_dataset=...))

Ray's `RayTrainReportCallback` uploads a copy of the checkpoint from every rank, and leaves resuming to the loop; here,
each node uploads once what all its ranks have written.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from plugin_core.loops.upload import Upload, is_own, report
from plugin_core.storage.scratch import scratch

#: The Trainer's own checkpoint within a checkpoint; the same as in Ray's callback.
CHECKPOINT_NAME = "checkpoint"
_WORLD = "world.json"


def train(trainer: Any, upload: Upload = "sync") -> Any:
    """`trainer.train()`, resumed from the run's checkpoint if there is one, with a report each time the Trainer saves.

    From another run's checkpoint (`resume_from`: a warm start) only the model's weights are used. Workers on a node must
    share one `output_dir`. Ray Data datasets are handled as by Ray's `prepare_trainer`. With a different number of workers
    the training continues in the same epoch, at the same learning rate.
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
        if is_own(checkpoint, folder):
            if _names_differ(trainer.model, source):
                trainer.add_callback(_WeightsCallback(source))
            with tempfile.TemporaryDirectory(dir=scratch()) as links:
                return trainer.train(resume_from_checkpoint=str(_in_steps_of_this_world(trainer, source, Path(links))))
        _load_weights(trainer.model, source)
    return trainer.train()


def _load_weights(model: Any, source: Path) -> None:
    if "peft" in sys.modules and isinstance(model, sys.modules["peft"].PeftModel):
        # the checkpoint has only the adapter
        model.load_adapter(str(source), model.active_adapter, is_trainable=True)
    else:
        model.load_state_dict(type(model).from_pretrained(source).state_dict())


def _names_differ(model: Any, source: Path) -> bool:
    """Whether the checkpoint has weights under names that the model does not have.

    `save_pretrained` writes some models (ViT is one) under the names of their published checkpoints. The Trainer's resume
    reads by the model's own names, warns about the others and trains on with fresh weights.
    """
    from safetensors import safe_open
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        return False
    known = model.state_dict().keys()
    for file in source.glob("model*.safetensors"):
        with safe_open(file, framework="pt") as weights:
            if not set(weights.keys()) <= known:
                return True
    return False


class _WeightsCallback(TrainerCallback):
    """Loads a checkpoint's weights with `from_pretrained`, which knows both names, after the Trainer's own resume."""

    def __init__(self, source: Path):
        self._source = source

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        _load_weights(model, self._source)


class ReportCallback(TrainerCallback):
    """Reports the last logged metrics with the checkpoint at each save, and at the end if more was logged since."""

    def __init__(self, upload: Upload = "sync"):
        self._upload = upload
        self._reported = -1

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        wait_for_all()
        source = Path(args.output_dir, f"checkpoint-{state.global_step}")

        def write(folder: Path) -> None:
            shutil.copytree(source, folder / CHECKPOINT_NAME)
            world = {"workers": _workers(), "steps_per_epoch": _steps_per_epoch(args, kwargs.get("train_dataloader"))}
            (folder / CHECKPOINT_NAME / _WORLD).write_text(json.dumps(world))

        self._reported = state.global_step
        report(_logged(state), write if _has_part(args) else None, self._upload)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step > self._reported and state.log_history:
            self._reported = state.global_step
            report(_logged(state))


def _in_steps_of_this_world(trainer: Any, source: Path, links: Path) -> Path:
    """Return the checkpoint with its step count converted to the current number of workers.

    The Trainer derives finished epochs and the learning rate from its optimizer steps, and fewer workers take more steps
    per epoch. A training bounded by `max_steps`, or whose data has no length, keeps its count.
    """
    import torch

    file = source / _WORLD
    before = json.loads(file.read_text()) if file.exists() else None
    if before is None or before["workers"] == _workers() or not before["steps_per_epoch"] or trainer.args.max_steps > 0:
        return source
    state = json.loads((source / "trainer_state.json").read_text())
    now = _steps_per_epoch(trainer.args, trainer.get_train_dataloader())
    steps = round(state["global_step"] / before["steps_per_epoch"] * now)
    (links / "trainer_state.json").write_text(json.dumps(state | {"global_step": steps}))
    schedule = torch.load(source / "scheduler.pt", weights_only=True)
    if "lr_lambdas" in schedule:  # the Trainer's own schedules; a metric-driven one counts evaluations
        torch.save(schedule | {"last_epoch": steps, "_step_count": steps + 1}, links / "scheduler.pt")
    for file in source.iterdir():
        if not (links / file.name).exists():
            (links / file.name).symlink_to(file)
    return links


def _workers() -> int:
    import ray.train

    return int(ray.train.get_context().get_world_size())


def _steps_per_epoch(args: Any, loader: Any) -> int:
    """Optimizer steps per epoch; 0 if the data has no length."""
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
    """Whether this rank uploads: rank 0 or, if the state is sharded, the first rank of each node."""
    import ray.train

    context = ray.train.get_context()
    sharded = bool(args.deepspeed or args.fsdp)
    return context.get_world_rank() == 0 or (sharded and context.get_local_rank() == 0)


def wait_for_all() -> None:
    """Return once every rank has called it."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.barrier()
