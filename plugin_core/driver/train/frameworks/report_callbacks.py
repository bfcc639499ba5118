"""Makes Ray's report callbacks safe for checkpoints that several ranks write, so loops from its guides run as is."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Any


def prepare(framework: str) -> None:
    """Patch the framework's `RayTrainReportCallback` in this worker, if it has one."""
    if framework == "transformers":
        _copy_when_all_have_written()
    if framework == "lightning":
        _report_each_nodes_parts()


def _copy_when_all_have_written() -> None:
    """On every rank, the one of Transformers copies what is in the Trainer's folder, where another rank may still be
    writing. Half a file from one rank would then replace the whole file from another on storage."""
    from ray.train.huggingface.transformers import RayTrainReportCallback

    from plugin_core.loops.transformers import wait_for_all

    on_save = RayTrainReportCallback.on_save

    def after_all(self: Any, *args: Any, **kwargs: Any) -> None:
        wait_for_all()
        on_save(self, *args, **kwargs)

    RayTrainReportCallback.on_save = after_all


def _report_each_nodes_parts() -> None:
    """With FSDP and DeepSpeed, Lightning writes every rank's part under rank 0's path, but its callback reports each
    rank's own path. Parts on other nodes than rank 0's would be left out, so there the first rank reports rank 0's."""
    from ray.train import get_context
    from ray.train.lightning import RayDeepSpeedStrategy, RayFSDPStrategy, RayTrainReportCallback

    on_train_epoch_end = RayTrainReportCallback.on_train_epoch_end

    def of_the_node(self: Any, trainer: Any, pl_module: Any) -> None:
        if isinstance(trainer.strategy, (RayFSDPStrategy, RayDeepSpeedStrategy)):
            own = Path(self.tmpdir_prefix, uuid.uuid4().hex)
            own.mkdir(parents=True)
            first = Path(trainer.strategy.broadcast(str(own)))
            another_disk = first.parent != own.parent and not first.exists()
            trainer.strategy.barrier()
            own.rmdir()
            if another_disk and get_context().get_local_rank() == 0:
                # what is there under this name was left by a killed worker group
                shutil.rmtree(first.parent, ignore_errors=True)
                self.tmpdir_prefix = str(first.parent)
        on_train_epoch_end(self, trainer, pl_module)

    RayTrainReportCallback.on_train_epoch_end = of_the_node
