"""What an exception of a step means."""

import errno
import socket
import urllib.error
from typing import Any

import aiohttp
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from ray.exceptions import ActorDiedError
from ray.train import ControllerError, WorkerGroupError

from plugin_core.errors import FencedError, InfrastructureError, StepTimeoutError, StorageFullError, UserCodeError
from plugin_core.errors.classify import TRACEBACK, _CreationError, classify, is_infrastructure
from plugin_core.errors.shown import did_you_mean

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
        ({0: OSError("When uploading part for key: AWS Error SLOW_DOWN")}, InfrastructureError, "AWS Error"),
        ({0: LOST, 1: OSError(errno.ENOSPC, "No space left on device")}, StorageFullError, "worker 1: the storage is full"),
        ({0: FencedError("a later attempt owns the run"), 1: LOST}, FencedError, "a later attempt"),
        ({0: FileNotFoundError("train.csv")}, UserCodeError, "FileNotFoundError: train.csv"),
    ],
)
def test_worker_errors_become_our_errors(workers: dict[int, Any], expected: type[Exception], words: str) -> None:
    error = classify(WorkerGroupError("failed", workers))
    assert type(error) is expected
    with pytest.raises(expected, match=words):
        raise error


def test_our_error_raised_by_the_controller_stays_that_error() -> None:
    mine = StepTimeoutError("no resources")
    assert classify(ControllerError(mine)) is mine


def test_the_error_details_are_the_users_traceback() -> None:
    error = ValueError("x")
    setattr(error, TRACEBACK, "Traceback of the user's loop")
    assert classify(WorkerGroupError("failed", {1: error})).details == "worker 1: \nTraceback of the user's loop"


def of_torch(name: str, text: str) -> BaseException:
    import torch.distributed

    return getattr(torch.distributed, name)(text)  # type: ignore[no-any-return]


def of(module: str, name: str, text: str, *bases: type) -> BaseException:
    """An error of a library that is not installed, or slow to import, by its own name."""
    return type(name, bases or (Exception,), {"__module__": module})(text)  # type: ignore[no-any-return]


def raised_in(file: str, error: BaseException) -> BaseException:
    setattr(error, TRACEBACK, f'Traceback (most recent call last):\n  File "{file}", line 1, in f\n{error!r}')
    return error


GLOO = "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/"
XGBOOST = """[07:32:15] /workspace/src/collective/result.cc:83: [coll_c_api.cc:38|07:32:15]:

- [allreduce.cc:135|07:32:15]: Ring Allreduce failed.
- [loop.cc:101|07:32:15]: Encountered EOF. The other end is likely closed.
- [socket.h:348|07:32:15]: Socket error. Broken pipe"""
NCCL = "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:328, {}, NCCL version 2.27.3"

LOSSES = {
    "gloo, reset": RuntimeError(GLOO + "pair.cc:537] Read error [127.0.0.1]:31134: Connection reset by peer"),
    "gloo, closed": RuntimeError(GLOO + "pair.cc:552] Connection closed by peer [127.0.0.1]:31134"),
    "gloo, waiting": RuntimeError(
        GLOO + "unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete"
    ),
    "gloo, raised by a library without its file": raised_in(
        "/venv/lib/python3.11/site-packages/torch/autograd/graph.py",
        RuntimeError("Connection closed by peer [10.0.0.7]:3113"),
    ),
    "nccl, remote": of_torch(
        "DistBackendError", NCCL.format("remote process exited or there was a network error") + "\nncclRemoteError: …"
    ),
    "nccl, system": of_torch(
        "DistBackendError", NCCL.format("unhandled system error (run with NCCL_DEBUG=INFO for details)")
    ),
    "nccl, before it had a type": RuntimeError(NCCL.format("unhandled system error")),
    "c10d store": of_torch("DistStoreError", "wait timeout after 300000ms, keys: /default_pg/0//cpu//0/rank_1"),
    "c10d network": of_torch("DistNetworkError", "The client socket has timed out after 60000ms while trying to connect"),
    "tensorflow, collective": of(
        "tensorflow.python.framework.errors_impl", "AbortedError", "Collective ops is aborted by: Cancelled by peer"
    ),
    "tensorflow, grpc": of(
        "tensorflow.python.framework.errors_impl",
        "UnavailableError",
        "failed to connect to all addresses; last error: UNKNOWN",
    ),
    "jax, coordination": of(
        "jaxlib._jax",
        "JaxRuntimeError",
        "UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats)",
        RuntimeError,
    ),
    "jax, gloo": of(
        "jaxlib._jax",
        "JaxRuntimeError",
        "INTERNAL: Gloo all-reduce failed: [external/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer",
        RuntimeError,
    ),
    "xgboost": of("xgboost.core", "XGBoostError", XGBOOST, ValueError),
    "lightgbm": of("lightgbm.basic", "LightGBMError", "Socket recv error, Connection reset by peer (code: 104)"),
    "lightgbm's port": of("lightgbm.basic", "LightGBMError", "Binding port 46395 failed"),
    "horovod": of("horovod.common.exceptions", "HorovodInternalError", "Horovod has been shut down.", RuntimeError),
    "a reset connection": ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
    "a disk that fails": OSError(errno.EIO, "Input/output error"),
    "nfs": OSError(errno.ESTALE, "Stale file handle"),
    "arrow, by the number in its text": OSError("Error reading bytes from file. Detail: [errno 5] Input/output error"),
    "arrow's s3": OSError(
        "When reading information for key 'a' in bucket 'b': AWS Error NETWORK_CONNECTION during HeadObject operation"
    ),
    "arrow's s3, throttled": OSError(
        "When uploading part for key 'a' in bucket 'b': AWS Error SLOW_DOWN during UploadPart"
    ),
    "botocore, no connection": EndpointConnectionError(endpoint_url="http://s3:9000"),
    "botocore, 503": ClientError({"Error": {"Code": "SlowDown"}, "ResponseMetadata": {"HTTPStatusCode": 503}}, "PutObject"),
    "aiohttp": aiohttp.ServerDisconnectedError(),
    "a resolver that is away": socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
    "urllib": urllib.error.URLError(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")),
}
MISTAKES = {
    "a column with a telling name": KeyError("column 'heartbeat_rate' not found"),
    "the same from a library": of("pandas.errors", "RuntimeError", "column 'heartbeat_rate' not found", RuntimeError),
    "a missing file": FileNotFoundError(errno.ENOENT, "No such file or directory", "/data/preempted_users.csv"),
    "a file that may not be read": PermissionError(errno.EACCES, "Permission denied", "/data/nccl/gloo.csv"),
    "nccl, invalid usage": of_torch(
        "DistBackendError",
        NCCL.format("invalid usage (run with NCCL_DEBUG=WARN for details)") + "\nncclInvalidUsage: This …",
    ),
    "nccl, invalid argument": RuntimeError(NCCL.format("invalid argument (run with NCCL_DEBUG=WARN for details)")),
    "no process group": RuntimeError(
        "Default process group has not been initialized, please make sure to call init_process_group."
    ),
    "a backend by a wrong name": ValueError("Unknown backend type gloo2"),
    "torch's shapes": RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"),
    "the words, raised by the user": raised_in("/work/train.py", RuntimeError("the sensor says Connection reset by peer")),
    "jax's argument": of(
        "jaxlib._jax", "JaxRuntimeError", "INVALID_ARGUMENT: shapes of the coordinates differ", RuntimeError
    ),
    "xgboost's label": of("xgboost.core", "XGBoostError", "Check failed: labels are out of range", ValueError),
    "lightgbm's parameter": of("lightgbm.basic", "LightGBMError", "Unknown format of training data at socket.csv"),
    "horovod's tensors": of(
        "horovod.common.exceptions", "HorovodInternalError", "Mismatched allreduce tensor shapes", RuntimeError
    ),
    "arrow's s3, refused": OSError(
        "When reading key 'a' in bucket 'b': AWS Error ACCESS_DENIED during GetObject operation"
    ),
    "botocore, 403": ClientError(
        {"Error": {"Code": "AccessDenied"}, "ResponseMetadata": {"HTTPStatusCode": 403}}, "GetObject"
    ),
    "a host that is misspelt": socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
    "a time-out of the user's own": TimeoutError("the labels did not come"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_lost_peer_or_service_is_infrastructure_by_its_type_number_or_its_librarys_own_words(name: str) -> None:
    assert type(classify(WorkerGroupError("failed", {0: LOSSES[name]}))) is InfrastructureError  # type: ignore[dict-item]


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_the_code_or_its_input_is_not_retried_whatever_its_words(name: str) -> None:
    assert type(classify(WorkerGroupError("failed", {0: MISTAKES[name]}))) is UserCodeError  # type: ignore[dict-item]


def test_an_error_from_an_actors_constructor_is_judged_by_the_name_and_text_that_ray_keeps() -> None:
    lost = ["ConnectionResetError: [Errno 104] Connection reset by peer", f"RuntimeError: {LOSSES['gloo, reset']}"]
    lost += ["botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL"]
    wrong = ["ValueError: no column 'heartbeat'", "FileNotFoundError: [Errno 2] No such file or directory: '/data/preempt'"]
    assert [is_infrastructure(_CreationError(text)) for text in (*lost, *wrong)] == [True] * 3 + [False] * 2


def test_an_error_that_was_raised_from_a_lost_connection_is_that_loss() -> None:
    error = ValueError("the batch could not be read")
    error.__cause__ = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
    assert type(classify(error)) is InfrastructureError


def test_a_misspelt_name_is_answered_with_the_most_similar_one() -> None:
    assert did_you_mean("accurcy", {"loss": 1, "accuracy": 1}) == " (did you mean accuracy?)"
    assert did_you_mean("accurcy", ["f1"]) == did_you_mean("accurcy", []) == ""
    assert did_you_mean("train_fn", ["tracking", "train_loop_per_worker"]) == "", "no suggestion rather than a wrong one"
    assert did_you_mean("envs", ["env_vars"]) != did_you_mean("envs", ["env_vars"], cutoff=0.75) == ""
