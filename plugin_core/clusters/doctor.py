"""What `raytrain doctor` looks at: the environment, the storage, the cluster."""

from __future__ import annotations

import asyncio
import importlib.metadata
import platform
from collections.abc import Iterator
from dataclasses import dataclass

from plugin_core.clusters.base import Cluster
from plugin_core.clusters.kuberay import KubeRayCluster
from plugin_core.errors import RayTrainWorkflowsError
from plugin_core.storage.location import Location, default_storage_path
from plugin_core.storage.proof import prove

PACKAGES = ("ray-train-workflows", "ray", "torch", "xgboost", "xgboost-cpu", "prefect", "apache-airflow", "boto3")


@dataclass(frozen=True)
class Check:
    name: str
    good: bool
    finding: str


def checks(cluster: Cluster, storage: str | None) -> Iterator[Check]:
    """One finding after another; a check that fails says how to put it right."""
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
    return Check("storage", True, f"{uri} can be written, and create-if-absent holds")


async def describe_cluster(cluster: Cluster) -> str:
    """What a cluster is, in one line. Raises where it cannot be reached or refuses."""
    if isinstance(cluster, KubeRayCluster) and not cluster.run_uri:
        return await cluster.describe()  # there is none before there is a run
    async with await cluster.connect() as client:
        version, nodes = (await client.version())["ray_version"], await client.nodes()
    total = {name: sum(node["resources_total"].get(name, 0) for node in nodes) for name in ("CPU", "GPU")}
    text = f"Ray {version}: {len(nodes)} nodes, {total['CPU']:g} CPUs, {total['GPU']:g} GPUs"
    ours = importlib.metadata.version("ray")
    return text if version == ours else f"{text} (this side has Ray {ours}; by-value functions want one version)"


def _cluster(cluster: Cluster) -> Check:
    try:
        return Check("cluster", True, asyncio.run(describe_cluster(cluster)))
    except RayTrainWorkflowsError as exc:
        return Check("cluster", False, exc.message)
