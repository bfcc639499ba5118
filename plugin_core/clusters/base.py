"""Where a step runs: an existing Ray cluster, or the embedded local one (one of its own on Kubernetes: `kuberay`)."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Protocol, Self

from annotated_types import Ge

from plugin_core.clusters.jobs_api import JobsClient
from plugin_core.clusters.options import Files, Headers, Token, Units, Word, check_options
from plugin_core.specs.fields import Flag, Seconds
from plugin_core.specs.references import CLUSTERS, check_address, is_known_cluster
from plugin_core.specs.runtime_env import Variables

logger = logging.getLogger(__name__)


class Cluster(Protocol):
    """What the core needs to know of a cluster. `connect()` may start one; it raises before anything is submitted."""

    @property
    def autoscaling(self) -> bool: ...

    @property
    def shares_this_machine(self) -> bool: ...

    @property
    def env_vars(self) -> dict[str, str]: ...

    @property
    def env_files(self) -> dict[str, str]: ...

    @property
    def identity(self) -> str:
        """Equal for two heads that cannot both live: the second one means that the first is gone."""
        ...

    def of_run(self, uri: str) -> Cluster:
        """The cluster of this run, where each run has its own."""
        ...

    async def lives(self) -> bool:
        """Whether there is one to ask. False is proof that nothing runs there; `connect` would start one."""
        ...

    async def connect(self) -> JobsClient: ...

    async def release(self, succeeded: bool) -> None:
        """A run on it is over. Raises one of CLUSTER_ERRORS."""
        ...

    def driver_command(self) -> list[str]:
        """The words that start the driver there, to be quoted for a shell."""
        ...

    def reference(self) -> dict[str, Any]:
        """How `find` makes it again in another process; without secrets."""
        ...


class Standing:
    """A cluster that outlives its runs."""

    def of_run(self, uri: str) -> Self:
        return self

    async def lives(self) -> bool:
        return True  # for all that can be known from here

    async def release(self, succeeded: bool) -> None:
        return

    def reference(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class RayCluster(Standing):
    """An existing cluster: `address` is its dashboard's URL, `token` its auth token (default: RAY_AUTH_TOKEN).

    `verify`: TLS verification, or a path to a CA file. `autoscaling`: nodes may come later, so a step that does not fit
    now waits instead of being refused. `env_vars`: variables for every job there, as credentials of trackers and storage:
    they go with the job's submit and into no spec, log or run directory. `env_files`: files that go along in the same way,
    variable → content (`{"DATABRICKS_CONFIG_FILE": Path("cfg").read_text()}`); there the variable names a file that
    holds it. `ray-train-workflows` has to be installed there.
    """

    address: str
    token: Token | None = field(default=None, repr=False)
    headers: Headers = field(default_factory=dict, repr=False)
    verify: Flag | Word = True
    autoscaling: Flag = False
    python: Word = "python"
    env_vars: Variables = field(default_factory=dict, repr=False)
    env_files: Files = field(default_factory=dict, repr=False)
    shares_this_machine: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        check_options(self)
        check_address("address", self.address)

    @property
    def identity(self) -> str:
        return self.address.rstrip("/")

    async def connect(self) -> JobsClient:
        token = os.environ.get("RAY_AUTH_TOKEN") if self.token is None else self.token
        return JobsClient(self.address, token, self.headers, self.verify)

    def driver_command(self) -> list[str]:
        return [self.python, "-m", "plugin_core.driver"]

    def reference(self) -> dict[str, Any]:
        return {"address": self.address, "verify": self.verify, "python": self.python}


@dataclass(frozen=True)
class LocalCluster(Standing):
    """The embedded cluster: one Ray head per user and Python environment, on loopback, shared by steps and processes.

    It is started when first needed, kept warm, and stopped after `idle_timeout_s` without a job. `num_cpus` is what it
    advertises when this step is the one that starts it (default: the machine's cores, but at least 4, so that two
    workers and Ray Data fit on a small machine). `env_vars`, `env_files`: as in RayCluster.
    """

    num_cpus: Annotated[Units, Ge(1)] | None = None
    num_gpus: Units | None = None
    idle_timeout_s: Seconds = 300.0
    env_vars: Variables = field(default_factory=dict, repr=False, hash=False)
    env_files: Files = field(default_factory=dict, repr=False, hash=False)
    autoscaling: bool = field(default=False, init=False)
    shares_this_machine: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def identity(self) -> str:
        from plugin_core.clusters import local_head

        return local_head.identity()

    async def connect(self) -> JobsClient:
        from plugin_core.clusters import local_head

        head = await asyncio.to_thread(local_head.ensure, self.num_cpus, self.num_gpus, self.idle_timeout_s)
        return JobsClient(head.address, head.token)

    async def lives(self) -> bool:
        from plugin_core.clusters import local_head

        return local_head.current() is not None

    def driver_command(self) -> list[str]:
        return [sys.executable, "-m", "plugin_core.driver"]


def find_cluster(reference: dict[str, Any]) -> Cluster:
    """The cluster of this `reference`, which was read from an artifact. It gets the token of the environment only if the
    installation names its address (see `is_known_cluster`). Raises SpecError."""
    if kuberay := reference.get("kuberay"):
        from plugin_core.clusters.kuberay import from_reference

        return from_reference(kuberay)
    if not reference:
        return LocalCluster()
    given = {name: reference[name] for name in ("address", "verify", "python") if name in reference}
    cluster = RayCluster(**given)
    if is_known_cluster(cluster.address):
        return cluster
    logger.warning(
        "%s stands in an artifact alone, so it gets no token; to let it have RAY_AUTH_TOKEN, list it in %s",
        cluster.address,
        CLUSTERS,
    )
    return replace(cluster, token="", verify=True)
