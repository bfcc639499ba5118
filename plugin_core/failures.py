"""What a failed step died of: the user's code, or the infrastructure under it."""

from __future__ import annotations

import errno
import re
import traceback
from typing import Any

from plugin_core.errors import (
    InfrastructureError,
    RayTrainWorkflowsError,
    StorageError,
    StorageFullError,
    UserCodeError,
)
from plugin_core.steps.worker import TRACEBACK

#: A lost peer shows on the others as one of these, raised by their collective or storage library inside user code.
_INFRASTRUCTURE = re.compile(
    r"connection (reset|closed|refused)|broken pipe|closed by peer|NCCL|gloo|process group|rendezvous|"
    r"AWS Error|Input/output error|Stale file handle|heartbeat|preempt|"
    r"socket (recv|send|connect|error)|collective ops is aborted|failed to connect to all addresses|"
    r"horovod has been shut down|coordination service|\[tracker\]|rabit",
    re.IGNORECASE,
)
#: Errors of frameworks that derive from none of Python's, and may tell of a lost peer.
_FRAMEWORKS_ERRORS = ("LightGBMError", "XGBoostError", "UnavailableError", "AbortedError", "InternalError")
_FULL = re.compile(r"No space left on device|Disk quota exceeded", re.IGNORECASE)


def classify(error: BaseException) -> RayTrainWorkflowsError:
    """The error of ours that an exception of a step means; errors of ours stay as they are.

    One infrastructure error among the workers' errors wins: killing one rank makes the others fail in user code. A full
    storage wins over that, since trying again cannot cure it.
    """
    causes = _causes(error)
    for cause in causes.values():
        if isinstance(cause, RayTrainWorkflowsError) and not isinstance(cause, StorageError):
            return cause
    for rank, cause in causes.items():
        if _is_full(cause):
            why = f"{_where(rank)}the storage is full ({_one_line(cause)}); the last complete checkpoint is kept"
            return StorageFullError(why, _details(causes))
    for rank, cause in causes.items():
        if _is_infrastructure(cause):
            return InfrastructureError(f"{_where(rank)}{_one_line(cause)}", _details(causes))
    rank, cause = next(iter(causes.items()))
    return UserCodeError(f"{_where(rank)}{_one_line(cause)}", _details(causes))


def _causes(error: BaseException) -> dict[Any, BaseException]:
    """The exceptions behind Ray's wrappers, by the worker's rank (None: no worker)."""
    from ray.exceptions import RayActorError, RayTaskError
    from ray.train import ControllerError, WorkerGroupError

    if isinstance(error, WorkerGroupError) and error.worker_failures:
        return dict(sorted(error.worker_failures.items()))
    if isinstance(error, ControllerError):
        return _causes(error.controller_failure)
    if isinstance(error, RayTaskError) and isinstance(error.cause, Exception):
        setattr(error.cause, TRACEBACK, str(error))
        return {None: error.cause}
    if isinstance(error, RayActorError) and error.actor_init_failed:
        return {None: _CreationError(str(error))}
    return {None: error}


class _CreationError(Exception):
    """What a user's class raised in an actor's `__init__`, of which Ray keeps the text alone."""

    def __init__(self, text: str):
        super().__init__(next((line.strip() for line in reversed(text.splitlines()) if line.strip()), ""))
        setattr(self, TRACEBACK, text)


def _is_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and (error.errno in (errno.ENOSPC, errno.EDQUOT) or bool(_FULL.search(str(error))))


def _is_infrastructure(error: BaseException) -> bool:
    from ray.exceptions import RayError, RayTaskError, UserCodeException
    from ray.train.v2._internal.exceptions import RayTrainError

    if isinstance(error, (RayError, RayTrainError)):
        return not isinstance(error, (RayTaskError, UserCodeException))
    if isinstance(error, StorageError):
        return True
    may_be = isinstance(error, (ConnectionError, OSError, RuntimeError, _CreationError))
    return (may_be or type(error).__name__ in _FRAMEWORKS_ERRORS) and bool(_INFRASTRUCTURE.search(str(error)))


def _where(rank: Any) -> str:
    return "" if rank is None else f"worker {rank}: "


def _one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    message = next((line for line in lines if line.strip()), "")
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    if isinstance(error, _CreationError):
        text = message
    return text[:500]


def _details(causes: dict[Any, BaseException]) -> str:
    parts = []
    for rank, cause in causes.items():
        text = getattr(cause, TRACEBACK, None) or "".join(traceback.format_exception(cause))
        parts.append(f"{_where(rank)}\n{text}" if rank is not None else text)
    return "\n".join(parts)[-20_000:]
