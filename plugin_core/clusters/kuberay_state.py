"""Read the state of a RayCluster resource from its metadata and status, and act on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from plugin_core.clusters import kuberay_lease as leases
from plugin_core.clusters.kubernetes_api import Kubernetes


def annotations_of(found: dict[str, Any]) -> dict[str, str]:
    return found["metadata"].get("annotations") or {}


def leaving(found: dict[str, Any]) -> bool:
    return bool(found["metadata"].get("deletionTimestamp"))


def ready(found: dict[str, Any]) -> bool:
    """Whether the head is ready; workers may follow. Operators before KubeRay 1.3 report only `state`, no conditions."""
    status = found.get("status") or {}
    conditions = {condition["type"]: condition["status"] for condition in status.get("conditions") or []}
    return conditions.get("HeadPodReady") == "True" if conditions else status.get("state") == "ready"


def delete_unless(kubernetes: Kubernetes, name: str, needed: Callable[[leases.Annotations], bool]) -> bool:
    """Delete a shared cluster, unless its annotations say that it is needed; returns whether it is deleted."""
    found = kubernetes.get(name)
    if found is None or needed(annotations_of(found)):
        return False
    if not leaving(found):
        kubernetes.delete(name, found["metadata"]["resourceVersion"])
    return True
