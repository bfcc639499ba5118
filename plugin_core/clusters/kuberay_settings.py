"""A simple RayCluster from a few settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge

from plugin_core.clusters.options import Memory, Units, Word, check_options
from plugin_core.specs.extras import version
from plugin_core.specs.fields import Count


@dataclass(frozen=True)
class KubeRaySettings:
    """A RayCluster without a manifest: one head, and `workers` identical worker pods.

    `image` must contain Ray, `ray-train-workflows` and the training's imports. `cpus`, `gpus`, `memory`: per worker pod;
    `head_cpus`, `head_memory`: of the head's pod; memory in Kubernetes' units. `env_from_secret`: a Secret whose keys
    become environment variables in each container (credentials for storage and trackers). `service_account`: of all
    pods. Ray's autoscaler scales the worker pods between 0 and `workers`, so an abandoned idle cluster holds no GPU after
    `idle_timeout_s` seconds.
    """

    image: Word
    workers: Units = 1
    cpus: Annotated[Units, Ge(1)] = 1
    gpus: Units = 0
    memory: Memory = "4Gi"
    head_cpus: Annotated[Units, Ge(1)] = 1
    head_memory: Memory = "4Gi"
    idle_timeout_s: Count = 60
    env_from_secret: Word | None = None
    service_account: Word | None = None

    def __post_init__(self) -> None:
        check_options(self)

    def manifest(self) -> dict[str, Any]:
        ray = version("ray")  # None if it is not installed; the field is optional
        workers = {
            "groupName": "workers",
            "replicas": self.workers,
            "minReplicas": 0,
            "maxReplicas": self.workers,
            "rayStartParams": {},
            "template": self._pod("ray-worker", self.cpus, self.memory, self.gpus),
        }
        return {
            "apiVersion": "ray.io/v1",
            "kind": "RayCluster",
            "spec": {
                **({"rayVersion": ray} if ray else {}),
                "authOptions": {"mode": "token"},
                "enableInTreeAutoscaling": True,
                "autoscalerOptions": {"idleTimeoutSeconds": self.idle_timeout_s},
                "headGroupSpec": {
                    "rayStartParams": {"dashboard-host": "0.0.0.0"},
                    "template": self._pod("ray-head", self.head_cpus, self.head_memory),
                },
                "workerGroupSpecs": [workers],
            },
        }

    def _pod(self, name: str, cpus: int, memory: str, gpus: int = 0) -> dict[str, Any]:
        amounts: dict[str, str] = {"cpu": str(cpus), "memory": memory, **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
        container: dict[str, Any] = {
            "name": name,
            "image": self.image,
            "resources": {"requests": amounts, "limits": amounts},
        }
        if self.env_from_secret:
            container["envFrom"] = [{"secretRef": {"name": self.env_from_secret}}]
        account = {"serviceAccountName": self.service_account} if self.service_account else {}
        return {"spec": {"containers": [container], **account}}
