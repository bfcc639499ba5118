"""Read the state of a RayCluster resource from its metadata and status."""

from __future__ import annotations

from typing import Any


def annotations_of(found: dict[str, Any]) -> dict[str, str]:
    return found["metadata"].get("annotations") or {}


def leaving(found: dict[str, Any]) -> bool:
    return bool(found["metadata"].get("deletionTimestamp"))


def ready(found: dict[str, Any]) -> bool:
    """Whether the head is ready; workers may follow. Operators before KubeRay 1.3 report only `state`, no conditions."""
    status = found.get("status") or {}
    conditions = {condition["type"]: condition["status"] for condition in status.get("conditions") or []}
    return conditions.get("HeadPodReady") == "True" if conditions else status.get("state") == "ready"
