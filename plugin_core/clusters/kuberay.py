"""Per-run Ray clusters on Kubernetes, created by KubeRay's operator and deleted when the run ends.

Each run has one RayCluster resource, whose name derives from the run's URI, so that a retry finds the same cluster.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import hashlib
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from plugin_core.clusters import kuberay_lease as leases
from plugin_core.clusters import kuberay_state as state
from plugin_core.clusters import kueue
from plugin_core.clusters.jobs_api import TERMINAL, JobsClient
from plugin_core.clusters.kuberay_settings import KubeRaySettings
from plugin_core.clusters.kubernetes_api import Kubernetes
from plugin_core.clusters.options import Files, Headers, Token, Word, check_options
from plugin_core.errors import (
    CLUSTER_ERRORS,
    ClusterQueuedError,
    ClusterRefusedError,
    ClusterUnreachableError,
    SpecError,
)
from plugin_core.errors.redaction import shown_uri
from plugin_core.specs.fields import Flag, Grace, Seconds, check_size
from plugin_core.specs.load import load_file
from plugin_core.specs.references import check_address
from plugin_core.specs.runtime_env import Variables
from plugin_core.storage.threads import in_thread

logger = logging.getLogger(__name__)

POLL_S = 2.0
#: The label and the annotations that mark our clusters.
MANAGED_BY = ("app.kubernetes.io/managed-by", "ray-train-workflows")
RUN = "ray-train-workflows/run"
#: KubeRay derives the names of pods and services from a cluster's name, and rejects longer ones.
NAME_LENGTH = 50
DIGEST_LENGTH = 10

T = TypeVar("T")


@dataclass(frozen=True)
class KubeRayCluster:
    """One RayCluster resource per run, in `namespace`. `name` is the prefix of the resources' names.

    `manifest`: a RayCluster manifest (a mapping, or a YAML file's path), or `settings` for a simple one. `kubeconfig`,
    `context`: which Kubernetes cluster (default: the pod's service account, then the usual kubeconfig).

    `on_success`, `on_failure`: "delete" or "keep" the cluster when the run ends. After `ttl_s` seconds, the next run in
    the same namespace deletes a kept cluster (None: never). A retry reuses a kept cluster.

    `queue`: a Kueue LocalQueue in the namespace. The cluster waits there until Kueue admits it, however long it takes;
    the log says so, with its position if Kueue reports it, and the wait does not count towards timeouts. Kueue does not
    admit clusters with Ray's autoscaler, so one made from `settings` has all its workers at once. If Kueue suspends the
    cluster later, the run waits for it again, and resumes from its checkpoint.

    `share`: with "workflow", all steps of a flow run or DAG run share one cluster. Each holds a lease on it, renewed by
    whoever follows the step; it expires after `lease_s` seconds without renewal. A cluster without leases is deleted at
    the end of the flow run or DAG run, or by the next run in the same namespace after `linger_s` seconds, in which the
    next step may begin. `on_success`, `on_failure` and `ttl_s` are ignored then.

    `start_timeout_s`: seconds for the head to become ready; on timeout the error contains Kubernetes' status and the end of
    the head's log. `address`: the dashboard's URL as seen from this process, with {name} and {namespace}; default: the head
    service's name within Kubernetes. `token`: default: from the Secret that KubeRay creates (`authOptions`).
    `env_vars`, `env_files`, `headers`, `verify`, `python`, `ship_package`: as in RayCluster.
    """

    name: Word
    manifest: dict[str, Any] | Word | None = field(default=None, repr=False)
    settings: KubeRaySettings | None = None
    namespace: Word = "default"
    on_success: Literal["delete", "keep"] = "delete"
    on_failure: Literal["delete", "keep"] = "delete"
    ttl_s: Grace | None = None
    queue: Word | None = None
    share: Literal["run", "workflow"] = "run"
    lease_s: Seconds = 600.0
    linger_s: Grace = 300.0
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
    ship_package: Flag = False
    run_uri: str = field(default="", repr=False)
    workflow: str = field(default="", repr=False)
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
        if self.queue is not None and not re.fullmatch(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?", self.queue):
            raise SpecError(f"queue: got {self.queue!r}; expected the name of a LocalQueue")
        self._body()

    # ---- what the core asks

    after_s = None

    def choices(self) -> tuple[KubeRayCluster, ...]:
        return (self,)

    def of_workflow(self, key: str) -> KubeRayCluster:
        return replace(self, workflow=key) if self.share == "workflow" and not self.workflow else self

    def of_run(self, uri: str) -> KubeRayCluster:
        digest = hashlib.sha256((self.workflow or uri).encode()).hexdigest()[:DIGEST_LENGTH]
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
        more |= {"ship_package": self.ship_package}
        ends = {"on_success": self.on_success, "on_failure": self.on_failure, "ttl_s": self.ttl_s}
        shared = {"share": self.share, "workflow": self.workflow, "lease_s": self.lease_s, "linger_s": self.linger_s}
        return {"kuberay": {**place, **more, **ends, **shared}}

    async def describe(self) -> str:
        """A one-line description that needs no run. Raises one of CLUSTER_ERRORS."""
        found = await self._ask(lambda kubernetes: kubernetes.list("=".join(MANAGED_BY)))
        return f"Kubernetes with KubeRay: {len(found)} clusters of runs in namespace {self.namespace}"

    async def lives(self) -> bool:
        found = await self._ask(lambda kubernetes: kubernetes.get(self.name))
        return found is not None and not state.leaving(found) and not kueue.is_stopped(found)

    async def end_leftovers(self) -> bool:
        return False  # the pods of a deleted cluster may take their time to end

    async def connect(self) -> JobsClient:
        """The cluster's Jobs API. Creates the cluster if needed and waits until its head is ready."""
        await self.sweep()
        deadline = time.monotonic() + self.start_timeout_s
        waited = False
        while True:
            found = await self._ask(self._look_and_create)
            if found is not None and not state.leaving(found) and kueue.is_suspended(found):
                place = await self._ask(functools.partial(kueue.place_in_queue, found=found))
                raise ClusterQueuedError(f"queued: RayCluster {self.namespace}/{self.name} waits {place}")
            if found is not None and not state.leaving(found) and state.ready(found) and await self._takes_up(found):
                client = await self._client(found)
                # the head's service may become ready slightly after its pod
                if not waited or await _answers(client):
                    return client
            if time.monotonic() > deadline:
                raise await self._not_started(found)
            waited = True
            await asyncio.sleep(POLL_S)

    async def _takes_up(self, found: dict[str, Any]) -> bool:
        """Take the cluster over. Nothing to do if the run does not share it and its deletion is not scheduled."""
        if not self.workflow and leases.DELETE_AFTER not in state.annotations_of(found):
            return True
        return await self._ask(self._take_up)

    async def keep(self) -> None:
        """Renew the run's lease on a cluster that it shares. Raises one of CLUSTER_ERRORS."""
        if self.workflow:
            await self._ask(self._take_up)

    @property
    def keep_every_s(self) -> float | None:
        return self.lease_s / 4 if self.workflow else None

    async def end_workflow(self) -> None:
        """After the last step: delete the cluster, unless somebody holds a lease on it. Raises one of CLUSTER_ERRORS."""
        if self.workflow:
            name = self.of_run(self.workflow).name
            await self._ask(functools.partial(state.delete_unless, name=name, needed=leases.is_needed))

    async def release(self, succeeded: bool) -> None:
        """After the run: delete the cluster, or schedule its deletion. Raises one of CLUSTER_ERRORS."""
        ends = (self.on_success if succeeded else self.on_failure) == "delete"
        # a queued cluster has nothing to inspect, and would be admitted some day with nobody to use it
        if self.workflow or ends or await self._ask(lambda kubernetes: kueue.is_suspended(kubernetes.get(self.name))):
            await self.leave()
        elif self.ttl_s is not None:
            moment = {leases.DELETE_AFTER: leases.in_seconds(self.ttl_s)}
            await self._ask(lambda kubernetes: kubernetes.annotate(self.name, lambda before: {**before, **moment}))

    async def leave(self) -> None:
        """Delete the cluster, or give back the run's lease on it. Raises one of CLUSTER_ERRORS."""
        if self.workflow:
            back = functools.partial(leases.given_back, run_uri=self.run_uri, linger_s=self.linger_s)
            await self._ask(lambda kubernetes: kubernetes.annotate(self.name, back))
        else:
            await self._ask(lambda kubernetes: kubernetes.delete(self.name))

    # ---- how

    async def _ask(self, do: Callable[[Kubernetes], T]) -> T:
        """Run `do` in a thread: the client blocks, even while it is imported and created."""
        return await in_thread(lambda: do(Kubernetes(self.namespace, self.kubeconfig, self.context)))

    def _url(self, name: str | None = None) -> str:
        return self.address.replace("{name}", name or self.name).replace("{namespace}", self.namespace)

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
        metadata["annotations"] = {**(metadata.get("annotations") or {}), RUN: self.workflow or self.run_uri}
        if self.queue is not None:
            body = {**body, "spec": kueue.queued(body["spec"], metadata, self.queue, fixed=self.settings is not None)}
        if self.workflow:  # whoever creates it may die before the head is ready
            until_ready = self.start_timeout_s + self.lease_s
            metadata["annotations"] = leases.taken(metadata["annotations"], self.run_uri, until_ready)
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

    def _take_up(self, kubernetes: Kubernetes) -> bool:
        """Take over an existing cluster, cancelling its scheduled deletion; False if it is being deleted."""

        def change(before: leases.Annotations) -> leases.Annotations:
            if self.workflow:
                return leases.taken(before, self.run_uri, self.lease_s)
            return {name: value for name, value in before.items() if name != leases.DELETE_AFTER}

        found = kubernetes.annotate(self.name, change)
        return found is not None and not state.leaving(found)

    async def _client(self, found: dict[str, Any]) -> JobsClient:
        """The Jobs API of a cluster, with its token."""
        name, options = found["metadata"]["name"], found["spec"].get("authOptions") or {}
        token = self.token
        if token is None and options.get("mode") == "token":
            token = await self._ask(lambda kubernetes: kubernetes.token(options.get("secretName") or name))
        return JobsClient(self._url(name), token, self.headers, self.verify)

    async def sweep(self) -> list[str]:
        """Delete our clusters in this namespace that are expired or abandoned; returns their names."""
        deleted = []
        for found in await self._ask(lambda kubernetes: kubernetes.list("=".join(MANAGED_BY))):
            name, version = found["metadata"]["name"], found["metadata"]["resourceVersion"]
            if name == self.name or state.leaving(found):
                continue
            given = state.annotations_of(found)
            if leases.is_over(given) or (leases.is_abandoned(given) and await self._is_idle(found)):
                # only this version: a concurrent take-over changes it
                await self._ask(functools.partial(Kubernetes.delete, name=name, version=version))
                deleted.append(name)
        return deleted

    async def _is_idle(self, found: dict[str, Any]) -> bool:
        """Whether no job is alive there. If its orchestrator died, a job runs on, and somebody may return to it."""
        try:
            async with await self._client(found) as client:
                return all(job.status in TERMINAL for job in await client.jobs())
        except CLUSTER_ERRORS as exc:
            logger.warning(
                "RayCluster %s has no leases and cannot be asked for jobs: %s", found["metadata"]["name"], exc.message
            )
            return False

    async def _not_started(self, found: dict[str, Any] | None) -> ClusterUnreachableError:
        """The error, with all known details, for a cluster that did not start. Deletes it if `on_failure` says so."""
        said = await self._ask(lambda kubernetes: kubernetes.explain(self.name, found))
        after = f"not ready after start_timeout_s={self.start_timeout_s:g}"
        if self.workflow:  # other steps may have live jobs there
            await self.leave()
            if await self._ask(functools.partial(state.delete_unless, name=self.name, needed=leases.is_taken)):
                after += ", and deleted"
        elif self.on_failure == "delete" and self._body() is not None:
            await self.leave()
            after += ", and deleted"
        return ClusterUnreachableError(f"cluster: RayCluster {self.namespace}/{self.name} is {after}: {said}")


async def _answers(client: JobsClient) -> bool:
    async with client:
        try:
            await client.version()
        except ClusterRefusedError:
            raise
        except CLUSTER_ERRORS:
            return False
    return True
