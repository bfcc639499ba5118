"""Per-run Ray clusters on Kubernetes, created by KubeRay's operator and deleted when the run ends.

Each run has one RayCluster resource, whose name derives from the run's URI, so that a retry finds the same cluster.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import functools
import hashlib
import logging
import os
import re
import time
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar

from plugin_core.clusters.jobs_api import JobsClient
from plugin_core.clusters.kuberay_settings import KubeRaySettings
from plugin_core.clusters.kubernetes_api import Kubernetes
from plugin_core.clusters.options import Files, Headers, Token, Word, check_options
from plugin_core.errors import CLUSTER_ERRORS, ClusterRefusedError, ClusterUnreachableError, SpecError
from plugin_core.errors.redaction import shown_uri
from plugin_core.specs.fields import Flag, Grace, Seconds, check_size
from plugin_core.specs.load import load_file
from plugin_core.specs.references import CLUSTERS, check_address, is_known_cluster
from plugin_core.specs.runtime_env import Variables
from plugin_core.storage.threads import in_thread

logger = logging.getLogger(__name__)

POLL_S = 2.0
#: The label and the annotations that mark our clusters.
MANAGED_BY = ("app.kubernetes.io/managed-by", "ray-train-workflows")
DELETE_AFTER = "ray-train-workflows/delete-after"
RUN = "ray-train-workflows/run"
#: KubeRay derives the names of pods and services from a cluster's name, and rejects longer ones.
NAME_LENGTH = 50
DIGEST_LENGTH = 10

#: The fields of a `reference`: enough to find a cluster, not to create one.
FOUND_BY = frozenset(
    {"name", "namespace", "address", "run_uri", "kubeconfig", "context", "verify", "python"}
    | {"on_success", "on_failure", "ttl_s"}
)

T = TypeVar("T")


@dataclass(frozen=True)
class KubeRayCluster:
    """One RayCluster resource per run. `name` is the prefix of the resources' names.

    `manifest`: a RayCluster manifest (a mapping, or a YAML file's path), or `settings` for a simple one. `kubeconfig`,
    `context`: which Kubernetes (default: the pod's service account, then the usual kubeconfig).

    `on_success`, `on_failure`: "delete" or "keep" the cluster when the run ends. After `ttl_s` seconds the next run in the
    same namespace deletes a kept cluster (None: never). A retry reuses a kept cluster.

    `start_timeout_s`: seconds for the head to become ready; on timeout the error contains Kubernetes' status and the end of
    the head's log. `address`: the dashboard's URL as seen from this process, with {name} and {namespace}; default: the head
    service's name within Kubernetes. `token`: default: from the Secret that KubeRay creates (`authOptions`).
    `env_vars`, `env_files`, `headers`, `verify`, `python`: as in RayCluster.
    """

    name: Word
    manifest: dict[str, Any] | Word | None = field(default=None, repr=False)
    settings: KubeRaySettings | None = None
    namespace: Word = "default"
    on_success: Literal["delete", "keep"] = "delete"
    on_failure: Literal["delete", "keep"] = "delete"
    ttl_s: Grace | None = None
    start_timeout_s: Seconds = 900.0
    kubeconfig: Word | None = None
    context: Word | None = None
    address: Word = "http://{name}-head-svc.{namespace}.svc.cluster.local:8265"
    token: Token | None = field(default=None, repr=False)
    headers: Headers = field(default_factory=dict, repr=False)
    verify: Flag | Word = True
    python: Word = "python"
    env_vars: Variables = field(default_factory=dict, repr=False)
    env_files: Files = field(default_factory=dict, repr=False)
    run_uri: str = field(default="", repr=False)
    autoscaling: bool = field(default=True, init=False)
    shares_this_machine: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        check_size(self.manifest, "manifest")
        check_options(self)
        longest = NAME_LENGTH if self.run_uri else NAME_LENGTH - DIGEST_LENGTH - 1
        if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", self.name) or len(self.name) > longest:
            raise SpecError(
                f"name: got {self.name!r}; expected up to {longest} lower-case letters, digits and '-', a letter first"
            )
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", self.namespace) or len(self.namespace) > 63:
            raise SpecError(f"namespace: got {self.namespace!r}; expected up to 63 lower-case letters, digits and '-'")
        if re.search("[{}]", self._url()):
            raise SpecError(
                f"address: got {shown_uri(self.address)!r}; expected a URL with the placeholders {{name}} and {{namespace}}"
            )
        check_address("address", self._url())
        if self.manifest is not None and self.settings is not None:
            raise SpecError("manifest: got both manifest and settings; expected one of them")
        for which in ("on_success", "on_failure"):
            if getattr(self, which) not in ("delete", "keep"):
                raise SpecError(f"{which}: got {getattr(self, which)!r}; expected 'delete' or 'keep'")
        self._body()

    # ---- what the core asks

    def of_run(self, uri: str) -> KubeRayCluster:
        digest = hashlib.sha256(uri.encode()).hexdigest()[:DIGEST_LENGTH]
        return self if self.run_uri else replace(self, name=f"{self.name}-{digest}", run_uri=uri)

    @property
    def identity(self) -> str:
        return f"kuberay {self.context or ''}/{self.namespace}/{self.name}"

    @property
    def title(self) -> str:
        return f"a KubeRay cluster, {self.name} in namespace {self.namespace}"

    def driver_command(self) -> list[str]:
        return [self.python, "-m", "plugin_core.driver"]

    def reference(self) -> dict[str, Any]:
        place = {"name": self.name, "namespace": self.namespace, "address": self.address, "run_uri": self.run_uri}
        more = {"kubeconfig": self.kubeconfig, "context": self.context, "verify": self.verify, "python": self.python}
        ends = {"on_success": self.on_success, "on_failure": self.on_failure, "ttl_s": self.ttl_s}
        return {"kuberay": {**place, **more, **ends}}

    async def describe(self) -> str:
        """A one-line description that needs no run. Raises one of CLUSTER_ERRORS."""
        found = await self._ask(lambda kubernetes: kubernetes.list("=".join(MANAGED_BY)))
        return f"Kubernetes with KubeRay: {len(found)} clusters of runs in namespace {self.namespace}"

    async def lives(self) -> bool:
        found = await self._ask(lambda kubernetes: kubernetes.get(self.name))
        return found is not None and not _leaving(found)

    async def end_leftovers(self) -> bool:
        return False  # the pods of a deleted cluster may take their time to end

    async def connect(self) -> JobsClient:
        """The cluster's Jobs API. Creates the cluster if needed and waits until its head is ready."""
        await self._ask(self._sweep)
        deadline = time.monotonic() + self.start_timeout_s
        waited = False
        while True:
            found = await self._ask(self._look_and_create)
            if found is not None and not _leaving(found) and _ready(found):
                token = await self._ask(functools.partial(self._take_up, found))
                client = JobsClient(self._url(), token, self.headers, self.verify)
                # the head's service may become ready slightly after its pod
                if not waited or await _answers(client):
                    return client
            if time.monotonic() > deadline:
                raise await self._not_started(found)
            waited = True
            await asyncio.sleep(POLL_S)

    async def release(self, succeeded: bool) -> None:
        """After the run: delete the cluster, or schedule its deletion. Raises one of CLUSTER_ERRORS."""
        if (self.on_success if succeeded else self.on_failure) == "delete":
            await self._ask(lambda kubernetes: kubernetes.delete(self.name))
        elif self.ttl_s is not None:
            moment = (datetime.now(UTC) + timedelta(seconds=self.ttl_s)).isoformat(timespec="seconds")
            await self._ask(lambda kubernetes: kubernetes.annotate(self.name, DELETE_AFTER, moment))

    # ---- how

    async def _ask(self, do: Callable[[Kubernetes], T]) -> T:
        """Run `do` in a thread: the client blocks, also while it is imported and created."""
        return await in_thread(lambda: do(Kubernetes(self.namespace, self.kubeconfig, self.context)))

    def _url(self) -> str:
        return self.address.replace("{name}", self.name).replace("{namespace}", self.namespace)

    def _body(self) -> dict[str, Any] | None:
        """The validated manifest with our name and labels; None if this object only finds a cluster."""
        if self.settings is not None:
            body = self.settings.manifest()
        elif isinstance(self.manifest, str):
            body = load_file(Path(self.manifest), "manifest")
        elif self.manifest is not None:
            body = copy.deepcopy(self.manifest)
        else:
            return None
        if not isinstance(body, dict) or body.get("kind") != "RayCluster" or not isinstance(body.get("spec"), dict):
            kind = body.get("kind") if isinstance(body, dict) else type(body).__name__
            raise SpecError(f"manifest: got kind {kind!r}; expected one RayCluster of ray.io/v1 with a spec")
        metadata = {**(body.get("metadata") or {}), "name": self.name, "namespace": self.namespace}
        metadata["labels"] = {**(metadata.get("labels") or {}), MANAGED_BY[0]: MANAGED_BY[1]}
        metadata["annotations"] = {**(metadata.get("annotations") or {}), RUN: self.run_uri}
        return {**body, "metadata": metadata}

    def _look_and_create(self, kubernetes: Kubernetes) -> dict[str, Any] | None:
        if (found := kubernetes.get(self.name)) is not None:
            return found
        if (body := self._body()) is None:
            raise ClusterUnreachableError(
                f"cluster: RayCluster {self.namespace}/{self.name} does not exist, and there is no manifest or settings to"
                " create it from"
            )
        kubernetes.create(body)
        logger.info("created RayCluster %s/%s for %s", self.namespace, self.name, self.run_uri)
        return None

    def _take_up(self, found: dict[str, Any], kubernetes: Kubernetes) -> str | None:
        """Take over an existing cluster, cancelling its scheduled deletion; returns its token."""
        if DELETE_AFTER in (found["metadata"].get("annotations") or {}):
            kubernetes.annotate(self.name, DELETE_AFTER, None)
        options = found["spec"].get("authOptions") or {}
        if self.token is not None or options.get("mode") != "token":
            return self.token
        secret = kubernetes.secret(options.get("secretName") or self.name)
        return base64.b64decode(secret["auth_token"]).decode()

    def _sweep(self, kubernetes: Kubernetes) -> None:
        """Delete our expired clusters in this namespace."""
        for found in kubernetes.list("=".join(MANAGED_BY)):
            moment = (found["metadata"].get("annotations") or {}).get(DELETE_AFTER)
            if found["metadata"]["name"] == self.name or moment is None or _leaving(found):
                continue
            if datetime.fromisoformat(moment) < datetime.now(UTC):
                # only this version: a concurrent take-over changes it
                kubernetes.delete(found["metadata"]["name"], found["metadata"]["resourceVersion"])

    async def _not_started(self, found: dict[str, Any] | None) -> ClusterUnreachableError:
        """The error for a cluster that did not start, with all that is known. Deletes it if `on_failure` says so."""
        said = await self._ask(lambda kubernetes: kubernetes.explain(self.name, found))
        after = f"not ready after start_timeout_s={self.start_timeout_s:g}"
        if self.on_failure == "delete" and self._body() is not None:
            await self._ask(lambda kubernetes: kubernetes.delete(self.name))
            after += ", and deleted"
        return ClusterUnreachableError(f"cluster: RayCluster {self.namespace}/{self.name} is {after}: {said}")


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
    installation allows its address and its kubeconfig, which may run commands."""
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


def _leaving(found: dict[str, Any]) -> bool:
    return bool(found["metadata"].get("deletionTimestamp"))


def _ready(found: dict[str, Any]) -> bool:
    """Whether the head is ready; workers may follow. Operators before KubeRay 1.3 report only `state`, no conditions."""
    status = found.get("status") or {}
    conditions = {condition["type"]: condition["status"] for condition in status.get("conditions") or []}
    return conditions.get("HeadPodReady") == "True" if conditions else status.get("state") == "ready"


async def _answers(client: JobsClient) -> bool:
    async with client:
        try:
            await client.version()
        except ClusterRefusedError:
            raise
        except CLUSTER_ERRORS:
            return False
    return True
