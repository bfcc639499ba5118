"""A board of small notes, stored on the head of this process's cluster and shared by all of the cluster's jobs."""

from __future__ import annotations

import ray
from ray._private.worker import WORKER_MODE, global_worker
from ray.experimental.internal_kv import internal_kv_get_gcs_client

from plugin_core.ray_internals.kv import TIMEOUT_S

_SPACE = b"raytrain-admission"


def read() -> dict[str, bytes]:
    """All notes by name."""
    client = internal_kv_get_gcs_client()
    names = client.internal_kv_keys(b"", _SPACE, timeout=TIMEOUT_S)
    found = client.internal_kv_multi_get(names, _SPACE, timeout=TIMEOUT_S) if names else {}
    return {name.decode(errors="replace"): data for name, data in found.items()}


def write(name: str, data: bytes) -> None:
    internal_kv_get_gcs_client().internal_kv_put(name.encode(), data, True, _SPACE, timeout=TIMEOUT_S)


def remove(name: str) -> None:
    internal_kv_get_gcs_client().internal_kv_del(name.encode(), False, _SPACE, timeout=TIMEOUT_S)


def job() -> str:
    """The id of this process's job."""
    found: str = ray.get_runtime_context().get_job_id()
    return found


def live_jobs() -> set[str]:
    """The ids of all jobs whose drivers are alive. Ray marks a job as finished when its driver ends or is killed."""
    client = internal_kv_get_gcs_client()
    found = client.get_all_job_info(
        skip_submission_job_info_field=True, skip_is_running_tasks_field=True, timeout=TIMEOUT_S
    )
    return {info.job_id.hex() for info in found.values() if not info.is_dead}


def in_worker() -> bool:
    """Whether this process runs a task or an actor, instead of being its job's driver."""
    return bool(global_worker.mode == WORKER_MODE)


def total() -> dict[str, float]:
    """The resources of all live nodes, used or not."""
    found: dict[str, float] = ray.cluster_resources()
    return found
