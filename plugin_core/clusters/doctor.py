"""The checks of `raytrain doctor`: environment, storage and cluster."""

from __future__ import annotations

import asyncio
import importlib.metadata
import platform
from collections.abc import Iterator
from dataclasses import dataclass

from plugin_core.clusters.base import Cluster
from plugin_core.clusters.kuberay import KubeRayCluster
from plugin_core.errors import RayTrainWorkflowsError
from plugin_core.specs.extras import version as version_of
from plugin_core.specs.resources import in_words
from plugin_core.storage.location import Location, default_storage_path
from plugin_core.storage.proof import prove

PACKAGES = ("ray-train-workflows", "ray", "torch", "xgboost", "xgboost-cpu", "prefect", "apache-airflow", "boto3")


@dataclass(frozen=True)
class Check:
    name: str
    good: bool
    finding: str


def checks(cluster: Cluster, storage: str | None) -> Iterator[Check]:
    """Yield the findings one by one; a failed check says how to fix it."""
    yield Check("python", True, platform.python_version())
    yield Check("packages", True, ", ".join(_versions()))
    yield _storage(storage or default_storage_path())
    yield _cluster(cluster)


def _versions() -> Iterator[str]:
    for name in PACKAGES:
        try:
            yield f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue


def _storage(uri: str) -> Check:
    try:
        prove(Location.of(uri))
    except RayTrainWorkflowsError as exc:
        return Check("storage", False, exc.message)
    return Check("storage", True, f"{uri} is writable, and create-if-absent works")


async def describe_cluster(cluster: Cluster) -> str:
    """Describe a cluster in one line. Raises one of CLUSTER_ERRORS."""
    if isinstance(cluster, KubeRayCluster) and not cluster.run_uri:
        return await cluster.describe()  # the cluster is created only with a run
    async with await cluster.connect() as client:
        version, nodes = (await client.version())["ray_version"], await client.nodes()
    total = {name: sum(node["resources_total"].get(name, 0) for node in nodes) for name in ("CPU", "GPU")}
    text = f"Ray {version}: {len(nodes)} nodes, {in_words(total)}"
    ours = version_of("ray")
    if ours in (None, version):
        return text
    return f"{text} (Ray {ours} here; that works; functions sent by value need the same minor version of Python)"


def _cluster(cluster: Cluster) -> Check:
    try:
        return Check("cluster", True, asyncio.run(describe_cluster(cluster)))
    except RayTrainWorkflowsError as exc:
        return Check("cluster", False, exc.message)
