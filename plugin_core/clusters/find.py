"""Find a cluster from the `reference` that another process wrote to an artifact."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from plugin_core.clusters.base import Cluster, LocalCluster, RayCluster
from plugin_core.clusters.fallback import MOST, FallbackCluster
from plugin_core.errors import SpecError
from plugin_core.specs.references import CLUSTERS, is_known_cluster

logger = logging.getLogger(__name__)


def find_cluster(reference: dict[str, Any]) -> Cluster:
    """The cluster of a `reference` read from an artifact. It gets the environment's token only if the installation lists
    its address (see `is_known_cluster`). Raises SpecError."""
    if "clusters" in reference:
        return find_fallback(reference, find_cluster)
    if kuberay := reference.get("kuberay"):
        from plugin_core.clusters.kuberay_json import from_reference

        return from_reference(kuberay)
    if not reference:
        return LocalCluster()
    given = {name: reference[name] for name in ("address", "verify", "python", "cert", "ship_package") if name in reference}
    cluster = RayCluster(**given)
    if is_known_cluster(cluster.address):
        return cluster
    logger.warning(
        "%s comes from an artifact only, so it gets no token; to send it RAY_AUTH_TOKEN, list it in %s",
        cluster.address,
        CLUSTERS,
    )
    return replace(cluster, token="", verify=True, cert=None)


def find_fallback(reference: dict[str, Any], find: Callable[[dict[str, Any]], Cluster]) -> FallbackCluster:
    """The fallback cluster for a list of references in an artifact; `find` resolves each one. Raises SpecError."""
    given = reference["clusters"]
    if not isinstance(given, list) or not all(isinstance(each, dict) and "clusters" not in each for each in given):
        raise SpecError("clusters: got something other than a list of references in an artifact; expected one")
    return FallbackCluster([find(each) for each in given[:MOST]], reference.get("after_s", FallbackCluster.after_s))
