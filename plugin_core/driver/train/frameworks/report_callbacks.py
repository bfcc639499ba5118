"""Makes Ray's own report callbacks safe for checkpoints that several ranks write, so that loops of Ray's guides run as they
are."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Any


def prepare(framework: str) -> None:
    """Change, in this worker, the `RayTrainReportCallback` of the framework, if it has one."""
    if framework == "transformers":
        _copy_when_all_have_written()
    if framework == "lightning":
        _report_each_nodes_parts()


def _copy_when_all_have_written() -> None:
    """That of Transformers copies on every rank what is in the Trainer's folder, where another rank may still be writing;
    half a file of one rank would replace the whole one of another on the storage."""
    from ray.train.huggingface.transformers import RayTrainReportCallback

    from plugin_core.loops.transformers import wait_for_all

    on_save = RayTrainReportCallback.on_save

    def after_all(self: Any, *args: Any, **kwargs: Any) -> None:
        wait_for_all()
        on_save(self, *args, **kwargs)

    RayTrainReportCallback.on_save = after_all


def _report_each_nodes_parts() -> None:
    """With FSDP and DeepSpeed, Lightning writes every rank's part under rank 0's path, and its callback reports each rank's
    own: the parts on another node than rank 0's would be left out. There, the first rank reports rank 0's path."""
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
                # what is there under this name is a killed worker group's
                shutil.rmtree(first.parent, ignore_errors=True)
                self.tmpdir_prefix = str(first.parent)
        on_train_epoch_end(self, trainer, pl_module)

    RayTrainReportCallback.on_train_epoch_end = of_the_node
