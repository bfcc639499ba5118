"""Ray Train's checkpoint validation: reports how each one ended, which no public callback does."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import Any

from ray.train.v2._internal.execution.checkpoint.checkpoint_manager import CheckpointManager
from ray.train.v2.api.reported_checkpoint import ReportedCheckpointStatus
from ray.train.v2.api.validation_config import ValidationTaskConfig

#: Called with a checkpoint's name, "validated", "failed" or "timed_out", and the metrics.
Then = Callable[[str, str, dict[str, Any]], None]

_STATUS = {
    ReportedCheckpointStatus.VALIDATED: "validated",
    ReportedCheckpointStatus.VALIDATION_FAILED: "failed",
    ReportedCheckpointStatus.VALIDATION_TIMEOUT: "timed_out",
}
_update = CheckpointManager.update_checkpoints_with_validation_result
_then: list[Then] = []


def listen(then: Then) -> None:
    """Call `then` for each validation that ends in this process, before Ray Train's snapshot has it. Replaces the
    previous listener: a process has one controller at a time."""
    _then[:] = [then]
    CheckpointManager.update_checkpoints_with_validation_result = _telling


def _telling(self: CheckpointManager, checkpoint_updates: dict[Any, tuple[dict[str, Any], Any]]) -> None:
    for checkpoint, (metrics, status) in checkpoint_updates.items():
        for then in _then:
            then(posixpath.basename(checkpoint.path.rstrip("/")), _STATUS[status], metrics)
    _update(self, checkpoint_updates)


def wanted(given: bool | ValidationTaskConfig) -> dict[str, Any] | None:
    """What a report's `validation` asks for, as JSON: arguments and timeout, {} for the spec's. None: nothing."""
    if not given:
        return None
    return {} if given is True else {"fn_kwargs": given.fn_kwargs, "timeout_s": given.timeout_s}
