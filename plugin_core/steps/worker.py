"""What runs around the user's train loop in every worker process."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

from plugin_core.functions import call_with
from plugin_core.jsonsafe import json_safe

#: The attribute of an exception that carries its traceback, as text, from a worker to the driver.
TRACEBACK = "_raytrain_traceback"
_OWN_FILES = (__file__, call_with.__code__.co_filename)


def wrap(loop: Callable[..., Any], *, attempt: int, warm_start: str | None) -> Callable[[dict[str, Any]], Any]:
    """The loop for Ray: reports are made JSON-safe, checkpoint names never repeat, `warm_start` is the first checkpoint."""

    def train_loop_per_worker(config: dict[str, Any]) -> Any:
        _install(attempt, warm_start)
        try:
            return call_with(loop, config)
        except Exception as exc:
            # Ray hands the exception on without its traceback
            setattr(exc, TRACEBACK, _users_traceback(exc))
            raise

    return train_loop_per_worker


def _users_traceback(exc: Exception) -> str:
    """The traceback without the frames of this package around the user's loop."""
    found = exc.__traceback__
    while found is not None and found.tb_next is not None and found.tb_frame.f_code.co_filename in _OWN_FILES:
        found = found.tb_next
    return "".join(traceback.format_exception(type(exc), exc, found))


def _install(attempt: int, warm_start: str | None) -> None:
    import ray.train
    from ray.train import CheckpointConsistencyMode, CheckpointUploadMode
    from ray.train.v2._internal.execution import train_fn_utils
    from ray.train.v2._internal.execution.context import get_train_context

    class SafeTrainFnUtils(train_fn_utils.DistributedTrainFnUtils):
        """Ray's own hook for changing what `ray.train.report` and `get_checkpoint` do in a worker."""

        def report(
            self,
            metrics: dict[str, Any],
            checkpoint: Any = None,
            checkpoint_dir_name: str | None = None,
            checkpoint_upload_mode: Any = CheckpointUploadMode.SYNC,
            **kwargs: Any,
        ) -> None:
            # a replayed epoch must not write into the directory of its first run, which top-K may delete later
            number = get_train_context().report_call_index + 1
            name = f"{checkpoint_dir_name or 'checkpoint'}_a{attempt:03}_{number:06}"
            super().report(json_safe(metrics), checkpoint, name, checkpoint_upload_mode, **kwargs)
            if checkpoint is not None and checkpoint_upload_mode is not CheckpointUploadMode.ASYNC:
                # Ray returns before its controller has registered the checkpoint; a kill in between would cost a second
                # interval. This waits for the controller's next poll.
                ray.train.get_all_reported_checkpoints(CheckpointConsistencyMode.COMMITTED)

        def get_checkpoint(self) -> Any:
            own = super().get_checkpoint()
            if own is None and warm_start is not None:
                from plugin_core.results import CheckpointRef

                return CheckpointRef(uri=warm_start).to_ray()
            return own

    train_fn_utils.set_train_fn_utils(SafeTrainFnUtils())
