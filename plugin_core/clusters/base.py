"""The cluster interface, existing Ray clusters and the embedded local one (per-run Kubernetes clusters: `kuberay`)."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Protocol, Self

from annotated_types import Ge

from plugin_core.clusters.jobs_api import JobsClient
from plugin_core.clusters.options import Files, Headers, Token, Units, Word, check_options
from plugin_core.specs.fields import Flag, Seconds
from plugin_core.specs.references import check_address
from plugin_core.specs.runtime_env import Variables

if TYPE_CHECKING:
    from plugin_core.clusters.local_head import Head


class Cluster(Protocol):
    """What the core needs from a cluster. `connect()` may start one; it raises before anything is submitted."""

    #: Seconds after which a run moves on to the next of several `choices`.
    @property
    def after_s(self) -> float | None: ...

    def choices(self) -> tuple[Cluster, ...]:
        """The clusters a run may use, in the order it tries them; a single cluster returns only itself."""
        ...

    @property
    def autoscaling(self) -> bool: ...

    @property
    def ship_package(self) -> bool:
        """Whether each job ships this package to the cluster."""
        ...

    @property
    def shares_this_machine(self) -> bool: ...

    @property
    def env_vars(self) -> dict[str, str]: ...

    @property
    def env_files(self) -> dict[str, str]: ...

    @property
    def identity(self) -> str:
        """Equal for two heads that cannot be alive at once: the second one implies that the first is gone."""
        ...

    @property
    def title(self) -> str:
        """The cluster's name for people, worded to follow "on" or "starting"."""
        ...

    def of_workflow(self, key: str) -> Cluster:
        """The cluster for this flow run or DAG run, if its steps share one. `key`: its unique id, stable across
        retries."""
        ...

    def of_run(self, uri: str) -> Cluster:
        """The cluster for this run, if each run has its own."""
        ...

    async def lives(self) -> bool:
        """Whether the cluster exists. False proves that nothing runs there; `connect` would start it."""
        ...

    async def end_leftovers(self) -> bool:
        """End whatever a dead cluster with this identity left running. True proves that nothing is left."""
        ...

    async def connect(self) -> JobsClient: ...

    @property
    def keep_every_s(self) -> float | None:
        """How often, in seconds, whoever follows a run there must call `keep`; None if it need not be called."""
        ...

    async def keep(self) -> None:
        """Say that the run still needs the cluster. Raises one of CLUSTER_ERRORS."""
        ...

    async def end_workflow(self) -> None:
        """Called when a flow run or DAG run has ended. Raises one of CLUSTER_ERRORS."""
        ...

    async def release(self, succeeded: bool) -> None:
        """Called when a run on it has ended. Raises one of CLUSTER_ERRORS."""
        ...

    async def leave(self) -> None:
        """Called when a run moves to another cluster, or no longer needs this one: remove everything made for it.
        Raises one of CLUSTER_ERRORS."""
        ...

    def driver_command(self) -> list[str]:
        """The argv that starts the driver there, to be quoted for a shell."""
        ...

    def reference(self) -> dict[str, Any]:
        """What `find_cluster` needs to recreate it in another process; without secrets."""
        ...


class OutlivesRuns:
    """A cluster that outlives its runs."""

    keep_every_s: None = None
    after_s: None = None
    ship_package = False

    def choices(self) -> tuple[Self, ...]:
        return (self,)

    def of_workflow(self, key: str) -> Self:
        return self

    async def keep(self) -> None:
        return

    async def end_workflow(self) -> None:
        return

    def of_run(self, uri: str) -> Self:
        return self

    async def lives(self) -> bool:
        return True  # cannot be determined from here

    async def end_leftovers(self) -> bool:
        return False

    async def release(self, succeeded: bool) -> None:
        return

    async def leave(self) -> None:
        return

    def reference(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class RayCluster(OutlivesRuns):
    """An existing cluster: `address` is its dashboard's URL, `token` its auth token (default: RAY_AUTH_TOKEN).

    `headers`: sent with every request. `verify`: TLS verification, or a path to a CA file. `cert`: a PEM file with this
    client's certificate and its key, if the address demands one (mutual TLS). `autoscaling`: nodes may be added later, so
    a step that does not fit now waits instead of being rejected. `env_vars`: variables for every job there, such as
    credentials for trackers and storage: sent with the job's submission, and never written to a spec, log or run
    directory. `env_files`: files sent the same way, variable → content (`{"DATABRICKS_CONFIG_FILE":
    Path("cfg").read_text()}`); on the cluster the variable holds the file's path. `python`: the Python there that runs the
    job. It must have `ray-train-workflows`, except with `ship_package`: then each job ships it, and the cluster needs only
    `ray[default,data,train]`.
    """

    address: str
    token: Token | None = field(default=None, repr=False)
    headers: Headers = field(default_factory=dict, repr=False)
    verify: Flag | Word = True
    autoscaling: Flag = False
    python: Word = "python"
    env_vars: Variables = field(default_factory=dict, repr=False)
    env_files: Files = field(default_factory=dict, repr=False)
    cert: Word | None = None
    ship_package: Flag = False
    shares_this_machine: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        check_options(self)
        check_address("address", self.address)

    @property
    def identity(self) -> str:
        return self.address.rstrip("/")

    async def connect(self) -> JobsClient:
        token = os.environ.get("RAY_AUTH_TOKEN") if self.token is None else self.token
        return JobsClient(self.address, token, self.headers, self.verify, self.cert)

    @property
    def title(self) -> str:
        return f"the cluster at {self.identity}"

    def driver_command(self) -> list[str]:
        return [self.python, "-m", "plugin_core.driver"]

    def reference(self) -> dict[str, Any]:
        given: dict[str, Any] = {"address": self.address, "verify": self.verify, "python": self.python}
        more = {"cert": self.cert, "ship_package": self.ship_package}
        return {**given, **{name: value for name, value in more.items() if value}}


@dataclass(frozen=True)
class LocalCluster(OutlivesRuns):
    """The embedded cluster: one Ray head per user and Python environment, on loopback, shared by steps and processes.

    Started when first needed, kept warm, and stopped after `idle_timeout_s` without a job. `env_vars`, `env_files`: as in
    RayCluster. The others count if this step starts it. `num_cpus`: the CPUs that it advertises (default: the machine's
    cores, but at least 4, so that two workers and Ray Data fit on a small machine); `num_gpus`: its GPUs (default: what
    Ray detects). `preload`: on Linux, one process imports torch, pandas and pyarrow, and workers and drivers are forked
    from it, unless variables are set for them. `full_dashboard`: its dashboard also has the pages for metrics, events, Ray
    Train, Ray Data and Serve, which need extra processes.
    """

    num_cpus: Annotated[Units, Ge(1)] | None = None
    num_gpus: Units | None = None
    idle_timeout_s: Seconds = 300.0
    env_vars: Variables = field(default_factory=dict, repr=False, hash=False)
    env_files: Files = field(default_factory=dict, repr=False, hash=False)
    preload: Flag = True
    full_dashboard: Flag = False
    autoscaling: bool = field(default=False, init=False)
    shares_this_machine: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def identity(self) -> str:
        from plugin_core.clusters import local_head

        return local_head.identity()

    @property
    def title(self) -> str:
        return "a local Ray head"

    async def connect(self) -> JobsClient:
        head = await asyncio.to_thread(self.start)
        return JobsClient(head.address, head.token)

    def start(self) -> Head:
        """The running head, started if there is none. Blocks. Raises ClusterUnreachableError if the start fails, SpecError
        if Ray is not installed."""
        from plugin_core.clusters import local_head

        return local_head.ensure(self.num_cpus, self.num_gpus, self.idle_timeout_s, self.preload, self.full_dashboard)

    async def lives(self) -> bool:
        from plugin_core.clusters import local_head

        return local_head.current() is not None

    async def end_leftovers(self) -> bool:
        from plugin_core.clusters import local_head

        await asyncio.to_thread(local_head.end_leftovers)
        return True

    def driver_command(self) -> list[str]:
        from plugin_core.ray_internals import forked

        # without a fork server, it execs the command that follows
        return [sys.executable, forked.__file__, "-m", "plugin_core.driver"]
