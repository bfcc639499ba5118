"""Leases that runs hold on a shared cluster: annotations of the RayCluster, each with its expiry time.

Whoever follows a run renews its lease, and gives it back when the run is over. So a cluster is needed as long as any
lease has not expired. An expired lease means that everybody who followed the run died. Its job may still be alive, so
the lease stays until somebody comes back to the run, or until the next run in the namespace finds no live job and
deletes the cluster.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

LEASE = "ray-train-workflows/lease-"
DELETE_AFTER = "ray-train-workflows/delete-after"
_DIGEST_LENGTH = 16

Annotations = dict[str, str]


def lease_of(run_uri: str) -> str:
    """The annotation that holds a run's lease. Its name is short, whatever the URI."""
    return f"{LEASE}{hashlib.sha256(run_uri.encode()).hexdigest()[:_DIGEST_LENGTH]}"


def in_seconds(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat(timespec="seconds")


def taken(annotations: Mapping[str, str], run_uri: str, lease_s: float) -> Annotations:
    """The annotations after the run takes or renews its lease."""
    kept = {name: value for name, value in annotations.items() if name != DELETE_AFTER}
    return {**kept, lease_of(run_uri): in_seconds(lease_s)}


def given_back(annotations: Mapping[str, str], run_uri: str, linger_s: float) -> Annotations:
    """The annotations after the run gives back its lease. Unless somebody takes another one, the cluster may be deleted
    after `linger_s`."""
    kept = {name: value for name, value in annotations.items() if name != lease_of(run_uri)}
    return {**kept, DELETE_AFTER: in_seconds(linger_s)}


def is_needed(annotations: Mapping[str, str]) -> bool:
    return any(not _is_past(value) for value in _leases(annotations))


def is_taken(annotations: Mapping[str, str]) -> bool:
    """Whether there is a lease, expired or not: a job may be alive."""
    return bool(_leases(annotations))


def is_over(annotations: Mapping[str, str]) -> bool:
    """Whether anybody may delete the cluster: its deletion is due, and every run there is over."""
    moment = annotations.get(DELETE_AFTER)
    return not _leases(annotations) and moment is not None and _is_past(moment)


def is_abandoned(annotations: Mapping[str, str]) -> bool:
    """Whether everybody who followed the unfinished runs died. Their jobs may still be alive."""
    moment = annotations.get(DELETE_AFTER)
    return bool(_leases(annotations)) and not is_needed(annotations) and (moment is None or _is_past(moment))


def _leases(annotations: Mapping[str, str]) -> list[str]:
    return [value for name, value in annotations.items() if name.startswith(LEASE)]


def _is_past(moment: str) -> bool:
    """Whether a moment is past. An unreadable value never is: anybody may have written it."""
    try:
        return datetime.fromisoformat(moment) < datetime.now(UTC)
    except (ValueError, TypeError):  # TypeError: without a time zone
        return False
