"""What `raytrain doctor` looks at: the environment, the storage, the cluster."""

from __future__ import annotations

import asyncio
import importlib.metadata
import platform
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from plugin_core.clusters import Cluster
from plugin_core.errors import RayTrainWorkflowsError
from plugin_core.storage import Location, default_storage_path

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
    yield asyncio.run(_cluster(cluster))


def _versions() -> Iterator[str]:
    for name in PACKAGES:
        try:
            yield f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue


def _storage(uri: str) -> Check:
    try:
        probe = Location.of(uri).child(f".raytrain-probe-{uuid.uuid4().hex[:8]}")
        first, second = probe.child("x").create(b"1"), probe.child("x").create(b"2")
        probe.delete_dir()
    except RayTrainWorkflowsError as exc:
        return Check("storage", False, exc.message)
    if not first or second:
        return Check("storage", False, f"{uri}: create-if-absent does not hold there, so two attempts could both start")
    return Check("storage", True, f"{uri} can be written, and create-if-absent holds")


async def _cluster(cluster: Cluster) -> Check:
    try:
        async with await cluster.connect() as client:
            version = await client.version()
            nodes = await client.nodes()
    except RayTrainWorkflowsError as exc:
        return Check("cluster", False, exc.message)
    total = {name: sum(node["resources_total"].get(name, 0) for node in nodes) for name in ("CPU", "GPU")}
    ours = importlib.metadata.version("ray")
    text = f"Ray {version['ray_version']}, {len(nodes)} nodes, {total['CPU']:g} CPUs, {total['GPU']:g} GPUs"
    if version["ray_version"] != ours:
        text += f" (this side has Ray {ours}: use one version)"
    return Check("cluster", version["ray_version"] == ours, text)
