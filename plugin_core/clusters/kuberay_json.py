"""Build KubeRay clusters from the data of a connection, a block, or a `reference` that another process wrote."""

from __future__ import annotations

import os
from dataclasses import MISSING, fields
from typing import Any

from plugin_core.clusters.kuberay import KubeRayCluster
from plugin_core.clusters.kuberay_settings import KubeRaySettings
from plugin_core.errors import SpecError
from plugin_core.errors.redaction import shown_uri
from plugin_core.specs.references import CLUSTERS, is_known_cluster

#: The fields of a `reference`: enough to find a cluster, not to create one.
FOUND_BY = frozenset(
    {"name", "namespace", "address", "run_uri", "kubeconfig", "context", "verify", "python", "ship_package"}
    | {"on_success", "on_failure", "ttl_s", "share", "workflow", "lease_s", "linger_s"}
)


def kuberay_from_json(data: dict[str, Any], **more: Any) -> KubeRayCluster:
    """A cluster from the data of a connection, a block or a `reference`. Raises SpecError for unknown fields."""
    defaults = {each.name: each.default if each.default is not MISSING else {} for each in fields(KubeRayCluster)}
    given = {**data, **{name: value for name, value in more.items() if name not in data or value != defaults[name]}}
    for kind, values in ((KubeRaySettings, given.get("settings") or {}), (KubeRayCluster, given)):
        known = [each.name for each in fields(kind) if each.init]
        missing = [each.name for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING]
        for name in values:
            if name not in known:
                raise SpecError(f"kuberay.{name}: unknown field; expected {', '.join(known)}")
        for name in missing:
            if values and name not in values:
                raise SpecError(f"kuberay.{name}: missing; expected a {kind.__name__}'s {name}")
    settings = KubeRaySettings(**given["settings"]) if given.get("settings") else None
    return KubeRayCluster(**{**given, "settings": settings})


def from_reference(data: dict[str, Any]) -> KubeRayCluster:
    """The cluster of a `reference` read from an artifact: found by name, never created. Raises SpecError unless this
    installation allows its address and its kubeconfig (a kubeconfig may run commands)."""
    cluster = kuberay_from_json({name: value for name, value in data.items() if name in FOUND_BY})
    if cluster.address != KubeRayCluster.address and not is_known_cluster(cluster.address):
        raise SpecError(
            f"kuberay.address: got {shown_uri(cluster.address)!r} from an artifact; expected one listed in the environment"
            f" variable {CLUSTERS}"
        )
    if cluster.kubeconfig is not None and cluster.kubeconfig not in os.environ.get("KUBECONFIG", "").split(os.pathsep):
        raise SpecError(
            f"kuberay.kubeconfig: got {cluster.kubeconfig!r} from an artifact; expected one listed in KUBECONFIG"
        )
    return cluster
