"""RayClusters in a Kueue queue. Kueue suspends each one until it admits it, and again when it preempts it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plugin_core.clusters.kubernetes_api import Kubernetes
from plugin_core.errors import CLUSTER_ERRORS, SpecError
from plugin_core.specs.json_values import is_count

#: The label that names a LocalQueue, and the annotation of workloads that may grow and shrink.
QUEUE, ELASTIC = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/elastic-job"


def queued(spec: Mapping[str, Any], metadata: dict[str, Any], queue: str, fixed: bool) -> dict[str, Any]:
    """A RayCluster's spec for a queue; also adds the queue's label to `metadata`. `fixed`: turn Ray's autoscaler off.
    Otherwise raises SpecError if it is on, because Kueue admits such a cluster only as an elastic job."""
    metadata["labels"][QUEUE] = queue
    if spec.get("enableInTreeAutoscaling") and not fixed and (metadata.get("annotations") or {}).get(ELASTIC) != "true":
        raise SpecError(
            "manifest.spec.enableInTreeAutoscaling: got true with a queue; expected false, or the annotation"
            f" {ELASTIC}: 'true' where Kueue allows elastic jobs"
        )
    # Kueue's webhook would set it too, but the operator may be faster
    found = {**spec, "suspend": True}
    if fixed:
        found = {name: value for name, value in found.items() if name != "autoscalerOptions"}
        found["enableInTreeAutoscaling"] = False
        found["workerGroupSpecs"] = [
            {**group, "minReplicas": group["replicas"], "maxReplicas": group["replicas"]}
            for group in spec["workerGroupSpecs"]
        ]
    return found


def is_suspended(found: Mapping[str, Any] | None) -> bool:
    return found is not None and bool(found["spec"].get("suspend"))


def is_stopped(found: Mapping[str, Any]) -> bool:
    """Whether a suspended cluster's pods are gone, so that nothing runs there."""
    status = found.get("status") or {}
    conditions = {each["type"]: each["status"] for each in status.get("conditions") or []}
    stopped = status.get("state") in (None, "", "suspended") or conditions.get("RayClusterSuspended") == "True"
    return is_suspended(found) and stopped


def place_in_queue(kubernetes: Kubernetes, found: Mapping[str, Any]) -> str:
    """Where a suspended cluster waits, in words."""
    queue = (found["metadata"].get("labels") or {}).get(QUEUE)
    if queue is None:
        return "suspended, and no queue of Kueue admits it (its spec.suspend is true)"
    try:
        pending = kubernetes.pending_workloads(queue)
    except (*CLUSTER_ERRORS, SpecError):
        pending = []  # Kueue's visibility API is optional, and may be forbidden
    name = found["metadata"]["name"]
    for each in pending:
        owners = each["metadata"].get("ownerReferences") or []
        if any(owner.get("kind") == "RayCluster" and owner.get("name") == name for owner in owners):
            ahead = each.get("positionInLocalQueue")
            return f"in Kueue's queue {queue}" + (f", {ahead} ahead" if is_count(ahead) else "")
    return f"in Kueue's queue {queue}"
