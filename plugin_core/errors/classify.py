"""Classify a step's failure: user code or infrastructure."""

from __future__ import annotations

import builtins
import errno
import re
import socket
import traceback
from typing import Any

from plugin_core.errors import (
    InfrastructureError,
    RayTrainWorkflowsError,
    StorageError,
    StorageFullError,
    UserCodeError,
)

#: Package → exception classes that always mean a lost peer, connection or service, whatever their message.
_LOST = {
    "torch": {
        "DistError",
        "DistBackendError",
        "DistNetworkError",
        "DistStoreError",
        "RendezvousConnectionError",
        "RendezvousTimeoutError",
        "RendezvousClosedError",
    },
    "tensorflow": {"UnavailableError", "AbortedError"},
    "horovod": {"HorovodInternalError", "HostsUpdatedInterrupt"},
    "aiohttp": {"ClientConnectionError", "ClientPayloadError"},
    "botocore": {
        "HTTPClientError",
        "ConnectionError",
        "EndpointConnectionError",
        "ConnectionClosedError",
        "ResponseStreamingError",
        "IncompleteReadError",
    },
    "requests": {"ConnectionError", "ChunkedEncodingError"},
    "urllib3": {"ProtocolError", "NewConnectionError", "MaxRetryError", "ReadTimeoutError", "ConnectTimeoutError"},
    "httpx": {"TransportError"},
    "azure": {"ServiceRequestError", "ServiceResponseError"},
    "google": {"ServerError", "TooManyRequests", "RetryError"},
}
#: Package ("" for a plain RuntimeError or OSError) → pattern of its messages for a lost peer, connection or service.
_SAYS = {
    "": r"gloo/(transport|rendezvous)/|^NCCL error|^When [^:]+: AWS Error|google::cloud::Status\((UNAVAILABLE|INTERNAL)|"
    # torch's message in the process that reads from a killed worker
    r"^DataLoader worker \(pid\(?s?\)? [\d, ]+\) (is killed by signal: (Killed|Terminated)|exited unexpectedly)",
    "xgboost": r"/collective/|\[tracker\]|\brabit\b",
    # Ray asks for a free port, which another process may take before LightGBM binds it
    "lightgbm": r"^Socket (send|recv|accept|construction) error|^Connecting to rank \d+ failed|^Binding port \d+ failed",
    "jax": r"^(UNAVAILABLE|ABORTED|DEADLINE_EXCEEDED|CANCELLED)\b|gloo/transport/|coordination (service|agent)",
    # a restarted peer that finds its predecessor's collectives also aborts them
    "tensorflow": r"Collective ops is aborted|[Cc]oordination (service|agent)|"
    r"failed to connect to all addresses|Connection reset by peer",
    "grpc": r"StatusCode\.UNAVAILABLE",
}
#: Messages of the same libraries for a bug in the code, which a retry cannot fix.
_MISTAKE = re.compile(
    r"invalid (usage|argument)|ncclInvalid|^Mismatched |"
    r"AWS Error (ACCESS_DENIED|NO_SUCH_\w+|INVALID_\w+|SIGNATURE_DOES_NOT_MATCH|MALFORMED_\w+|VALIDATION|MISSING_\w+)"
)
#: The operating system's messages for a lost connection. Without an errno they count only if a library raised them.
_STRERROR = re.compile(r"Connection (reset|closed) by peer|Connection refused|Broken pipe|Connection timed out")
_ERRNO = re.compile(r"\[[Ee]rrno (\d+)\]")
_LOST_NUMBERS = {
    *(errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED, errno.EPIPE, errno.ETIMEDOUT, errno.ENOTCONN),
    *(errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN, errno.ENETRESET, errno.ESHUTDOWN),
    *(errno.EIO, errno.ESTALE),
}
#: Transient service errors, by HTTP status or by the service's error code.
_BUSY_STATUS, _BUSY_CODES = 429, {"SlowDown", "Throttling", "ThrottlingException", "RequestTimeout", "InternalError"}
#: Messages of drivers and libraries about a broken GPU: not a bug in the code, and a restart may get a healthy one.
_BROKEN = re.compile(r"uncorrectable (NVLink|ECC) error|has fallen off the bus|\bGPU is lost\b")
_FULL = re.compile(r"No space left on device|Disk quota exceeded", re.IGNORECASE)


def classify(error: BaseException) -> RayTrainWorkflowsError:
    """Map an exception from a step to one of our errors; our own errors are returned unchanged.

    One infrastructure error among the workers' errors wins: killing one rank makes the others fail in user code. Full
    storage takes precedence over that, because another attempt at once would meet it again.
    """
    causes = unwrapped(error)
    for cause in causes.values():
        if isinstance(cause, RayTrainWorkflowsError) and not isinstance(cause, StorageError):
            return cause
    for rank, cause in causes.items():
        if _is_full(cause):
            why = f"{_where(rank)}the storage is full ({one_line(cause)}); the last complete checkpoint is kept"
            return StorageFullError(why, _details(causes))
    for rank, cause in causes.items():
        if is_infrastructure(cause):
            return InfrastructureError(f"{_where(rank)}{one_line(cause)}", _details(causes))
    rank, cause = next(iter(causes.items()))
    return UserCodeError(f"{_where(rank)}{one_line(cause)}", _details(causes))


def unwrapped(error: BaseException) -> dict[Any, BaseException]:
    """Unwrap Ray's exceptions: worker rank (None: not a worker) → exception."""
    from ray.exceptions import RayActorError, RayTaskError
    from ray.train import ControllerError, WorkerGroupError

    if isinstance(error, WorkerGroupError) and error.worker_failures:
        return dict(sorted(error.worker_failures.items()))
    if isinstance(error, ControllerError):
        return unwrapped(error.controller_failure)
    if isinstance(error, RayTaskError) and isinstance(error.cause, Exception):
        setattr(error.cause, TRACEBACK, str(error))
        return {None: error.cause}
    if isinstance(error, RayActorError) and error.actor_init_failed:
        return {None: _CreationError(str(error))}
    return {None: error}


class _CreationError(Exception):
    """An exception from a user class's `__init__` in an actor; Ray keeps only its text."""

    def __init__(self, text: str):
        last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
        super().__init__(last)
        setattr(self, TRACEBACK, text)
        name, _, self.said = last.partition(": ")
        package, _, self.name = name.rpartition(".")
        self.package = package.partition(".")[0]


def is_broken_hardware(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and bool(_BROKEN.search(str(error)))


def _is_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and (error.errno in (errno.ENOSPC, errno.EDQUOT) or bool(_FULL.search(str(error))))


def is_infrastructure(error: BaseException) -> bool:
    from ray.exceptions import RayError, RayTaskError, UserCodeException

    from plugin_core.ray_internals.train_errors import RayTrainError

    if isinstance(error, (RayError, RayTrainError)):
        return not isinstance(error, (RayTaskError, UserCodeException))
    if isinstance(error, StorageError):
        return True
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if _tells_of_a_loss(cause):
            return True
        cause = cause.__cause__
    return False


def _tells_of_a_loss(error: BaseException) -> bool:
    """Whether an exception means a lost peer, connection or service, judged by its type and where it was raised.

    The message counts only if it is the library's own.
    """
    if isinstance(error, _CreationError):
        names, said = {(error.package, error.name)}, error.said
        kind = getattr(builtins, error.name, Exception) if not error.package else Exception
    else:
        kind, said = type(error), str(error).strip()
        names = {(cls.__module__.partition(".")[0].replace("jaxlib", "jax"), cls.__name__) for cls in kind.__mro__}
    if _MISTAKE.search(said):
        return False
    if any(name in _LOST.get(package, ()) for package, name in names):
        return True
    response = getattr(error, "response", None)
    if isinstance(response, dict) and _is_busy(response):
        return True
    if issubclass(kind, (EOFError, FileNotFoundError)) and _asked_a_process_that_is_gone(error):
        return True
    if issubclass(kind, OSError):
        return _os_error_is_loss(error, kind, said)
    packages = {package for package, _ in names} - {"builtins"}
    plain = issubclass(kind, RuntimeError)
    if plain and _BROKEN.search(said):
        return True
    if any(re.search(_SAYS[package], said) for package in (*packages, *([""] if plain else [])) if package in _SAYS):
        return True
    return plain and bool(_STRERROR.search(said)) and _raised_in_a_library(error)


def _os_error_is_loss(error: BaseException, kind: type, said: str) -> bool:
    if issubclass(kind, ConnectionError) or getattr(error, "errno", None) in _LOST_NUMBERS:
        return True
    if isinstance(error, socket.gaierror):
        return error.errno == socket.EAI_AGAIN
    if isinstance(getattr(error, "reason", None), OSError):  # urllib's URLError
        return _tells_of_a_loss(error.reason)  # type: ignore[attr-defined]
    # pyarrow puts the errno only in the message
    number = _ERRNO.search(said)
    return (number is not None and int(number[1]) in _LOST_NUMBERS) or bool(re.search(_SAYS[""], said))


def _is_busy(response: dict[str, Any]) -> bool:
    """Whether a botocore response is a transient error."""
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status >= 500 or status == _BUSY_STATUS or response.get("Error", {}).get("Code") in _BUSY_CODES


def _raised_in_a_library(error: BaseException) -> bool:
    """Whether the innermost frame belongs to an installed package."""
    files = _files(error)
    return bool(files) and not {"site-packages", "dist-packages"}.isdisjoint(files[-1])


def _asked_a_process_that_is_gone(error: BaseException) -> bool:
    """The tensors of a DataLoader's batch stay with the process that made them. Once it is killed, its socket is missing or
    closes without an answer."""
    return any(file[-2:] == ["multiprocessing", "resource_sharer.py"] for file in _files(error))


def _files(error: BaseException) -> list[list[str]]:
    """The parts of the path of each frame's file, the innermost last."""
    text = getattr(error, TRACEBACK, None) or "".join(traceback.format_tb(error.__traceback__))
    return [re.split(r"[\\/]", file) for file in re.findall(r'File "([^"]+)", line', text)]


def _where(rank: Any) -> str:
    return "" if rank is None else f"worker {rank}: "


def one_line(error: BaseException) -> str:
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


#: The exception attribute that carries the traceback text from a worker to the driver.
TRACEBACK = "_raytrain_traceback"
