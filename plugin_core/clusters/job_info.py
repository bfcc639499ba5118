"""A job as the Jobs API describes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

TERMINAL = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})
STATUSES = TERMINAL | {"PENDING", "RUNNING"}


@dataclass(frozen=True)
class JobInfo:
    """A job in the Jobs API. `status`: Ray's status. `driver_id`: Ray's id for its driver (which Ray also calls a job).
    `node_id`: the node that has its log."""

    submission_id: str
    status: str
    message: str = ""
    error_type: str = ""
    exit_code: int | None = None
    metadata: dict[str, str] | None = None
    driver_id: str = ""
    node_id: str = ""

    @property
    def terminal(self) -> bool:
        return self.status in TERMINAL


def job_of(data: dict[str, Any]) -> JobInfo:
    """The job that Ray's data describes. Raises AttributeError, LookupError, TypeError or ValueError for other data."""
    if data["status"] not in STATUSES:
        raise ValueError(f"got the status {data['status']!r}")
    return JobInfo(
        submission_id=data.get("submission_id") or "",
        status=data["status"],
        message=data.get("message") or "",
        error_type=data.get("error_type") or "",
        exit_code=data.get("driver_exit_code"),
        metadata=data.get("metadata") or {},
        driver_id=data.get("job_id") or (data.get("driver_info") or {}).get("id") or "",
        node_id=data.get("driver_node_id") or "",
    )
