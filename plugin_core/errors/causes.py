"""Find a failure's cause from its exceptions: one of the causes that a `failure_policy` has rules for."""

from __future__ import annotations

import re

from plugin_core.errors import RayTrainWorkflowsError
from plugin_core.errors.classify import classify, is_broken_hardware, is_infrastructure, unwrapped

#: Ray's message about a process that is gone → the cause.
_LOSSES = (
    (re.compile(r"running low on memory|OutOfMemoryError"), "host_oom"),
    (re.compile(r"preempt", re.IGNORECASE), "preempted"),
    (re.compile(r"node has died|node died|node was dead|owner's node"), "node_lost"),
    (re.compile(r"connection error code 2|unexpected system error|actor died unexpectedly|is unavailable"), "worker_lost"),
)
#: The frameworks' messages for a GPU that is out of memory, where the class does not tell, and the classes that do.
_GPU_OOM = re.compile(
    r"CUDA out of memory|HIP out of memory|CUDA error: out of memory|cudaErrorMemoryAllocation|CUBLAS_STATUS_ALLOC_FAILED|"
    r"RESOURCE_EXHAUSTED: (Out of memory|Failed to allocate)|OOM when allocating tensor|"
    r"bad_alloc: (out_of_memory: )?(CUDA|cuda)"
)
_GPU_OOM_TYPES = {("torch", "OutOfMemoryError")}
#: The most explanatory cause first: killing one worker breaks the connections of the others.
_EXPLAINS = (
    "hang",
    "bad_node",
    "gpu_oom",
    "host_oom",
    "preempted",
    "node_lost",
    "worker_lost",
    "storage",
)


def cause_of(error: BaseException) -> tuple[str, int | None]:
    """The cause of a failure, and the rank that shows it (None: no rank does). If several workers raised, the exception
    that explains the others decides."""
    known = "hang" if type(error).__name__ == "NCCLHangError" else _own_cause(classify(error))
    found = {rank: _cause(each) for rank, each in unwrapped(error).items()}
    for cause in [known] if known not in ("user_code", "infrastructure") else _EXPLAINS:
        for rank, shows in found.items():
            if shows == cause:
                return cause, rank
    return known, None


def _own_cause(error: RayTrainWorkflowsError) -> str:
    return error.cause or "infrastructure"


def _cause(error: BaseException) -> str:
    """The cause that one worker's exception shows; "" if it shows none by itself."""
    if isinstance(error, RayTrainWorkflowsError):
        return _own_cause(error)
    if is_broken_hardware(error):
        return "bad_node"
    if is_infrastructure(error):
        return loss(error)
    return "gpu_oom" if _is_gpu_oom(error) else ""


def loss(error: BaseException) -> str:
    """The cause of a process's loss; "" if the exception does not say."""
    if getattr(getattr(error, "health_check_failure", error), "preempted", False):
        return "preempted"
    said = f"{type(error).__name__}: {error}"
    return next((cause for pattern, cause in _LOSSES if pattern.search(said)), "")


def _is_gpu_oom(error: BaseException) -> bool:
    names = {(cls.__module__.partition(".")[0], cls.__name__) for cls in type(error).__mro__}
    return bool(names & _GPU_OOM_TYPES) or bool(_GPU_OOM.search(str(error)))
