"""Callbacks of Ray Train's controller. The public `UserCallback` is not notified of phases or of the end of a run."""

from __future__ import annotations

from typing import Any

from ray.train.v2._internal.execution.callback import ControllerCallback as ControllerCallback
from ray.train.v2._internal.execution.callback import ReportCallback as ReportCallback
from ray.train.v2._internal.execution.callback import WorkerGroupCallback as WorkerGroupCallback


def state_name(state: Any) -> str:
    """The controller state's name in lower case: initializing, scheduling, running, restarting, …"""
    return str(state._state_type.state_name).lower()
