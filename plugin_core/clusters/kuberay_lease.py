"""Leases of runs on a cluster that they share: annotations of the RayCluster, each with the moment when it ends.

Whoever follows a run renews its lease, and gives it back when the run is over. So a cluster is needed as long as one lease
has not ended. A lease that has ended tells that everybody died who followed the run: its job may live, so it stays until
somebody comes back to the run, or until the next run in the namespace sees that no job lives and deletes the cluster.
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
    """The annotations once the run has, or has renewed, its lease."""
    kept = {name: value for name, value in annotations.items() if name != DELETE_AFTER}
    return {**kept, lease_of(run_uri): in_seconds(lease_s)}


def given_back(annotations: Mapping[str, str], run_uri: str, linger_s: float) -> Annotations:
    """The annotations once the run has given back its lease: when nobody takes another one, the cluster may be deleted
    after `linger_s`."""
    kept = {name: value for name, value in annotations.items() if name != lease_of(run_uri)}
    return {**kept, DELETE_AFTER: in_seconds(linger_s)}


def is_needed(annotations: Mapping[str, str]) -> bool:
    return any(not _is_past(value) for value in _leases(annotations))


def is_over(annotations: Mapping[str, str]) -> bool:
    """Whether anybody may delete the cluster: its time has come, and every run there is over."""
    moment = annotations.get(DELETE_AFTER)
    return not _leases(annotations) and moment is not None and _is_past(moment)


def is_abandoned(annotations: Mapping[str, str]) -> bool:
    """Whether everybody died who followed the runs that are not over. Their jobs may live."""
    moment = annotations.get(DELETE_AFTER)
    return bool(_leases(annotations)) and not is_needed(annotations) and (moment is None or _is_past(moment))


def _leases(annotations: Mapping[str, str]) -> list[str]:
    return [value for name, value in annotations.items() if name.startswith(LEASE)]


def _is_past(moment: str) -> bool:
    """Whether a moment is past; one that nobody can read, which anybody may have written, never is."""
    try:
        return datetime.fromisoformat(moment) < datetime.now(UTC)
    except (ValueError, TypeError):  # TypeError: without a time zone
        return False
