"""What an exception of a step means."""

import errno
from typing import Any

import pytest
from ray.exceptions import ActorDiedError
from ray.train import ControllerError, WorkerGroupError

from plugin_core.errors import FencedError, InfrastructureError, StepTimeoutError, StorageFullError, UserCodeError
from plugin_core.failures import classify
from plugin_core.steps.worker import TRACEBACK

PEER = RuntimeError("[gloo/transport/tcp/pair.cc:525] Read error [127.0.0.1]:1: Connection reset by peer")
LOST = ActorDiedError()
MINE = ValueError("the data is bad")


@pytest.mark.parametrize(
    ("workers", "expected", "words"),
    [
        ({0: MINE}, UserCodeError, "worker 0: ValueError: the data is bad"),
        ({0: MINE, 1: LOST}, InfrastructureError, "worker 1: ActorDiedError"),
        ({0: PEER, 1: MINE}, InfrastructureError, "worker 0: RuntimeError: .*Connection reset"),
        ({0: RuntimeError("NCCL error: unhandled system error")}, InfrastructureError, "NCCL"),
        ({0: RuntimeError("shapes do not match")}, UserCodeError, "shapes do not match"),
        ({0: OSError("When uploading part: AWS Error SLOW_DOWN")}, InfrastructureError, "AWS Error"),
        ({0: LOST, 1: OSError(errno.ENOSPC, "No space left on device")}, StorageFullError, "worker 1: the storage is full"),
        ({0: FencedError("a later attempt owns the run"), 1: LOST}, FencedError, "a later attempt"),
        ({0: FileNotFoundError("train.csv")}, UserCodeError, "FileNotFoundError: train.csv"),
    ],
)
def test_the_workers_errors(workers: dict[int, Any], expected: type[Exception], words: str) -> None:
    error = classify(WorkerGroupError("failed", workers))
    assert type(error) is expected
    with pytest.raises(expected, match=words):
        raise error


def test_an_error_of_ours_that_the_controller_raised_is_that_error() -> None:
    mine = StepTimeoutError("no resources")
    assert classify(ControllerError(mine)) is mine


def test_the_details_are_the_users_traceback() -> None:
    error = ValueError("x")
    setattr(error, TRACEBACK, "Traceback of the user's loop")
    assert classify(WorkerGroupError("failed", {1: error})).details == "worker 1: \nTraceback of the user's loop"  # type: ignore[attr-defined]
