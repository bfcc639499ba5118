"""Where a step runs: an existing Ray cluster, or the embedded local one (one of its own on Kubernetes: `kuberay`)."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from dataclasses import dataclass, field
from typing import Any, Protocol, Self
from urllib.parse import urlsplit

from plugin_core.errors import InfeasibleError, SpecError
from plugin_core.jobs import JobsClient
from plugin_core.specs import BatchInferSpec, Evaluation, RetrainSpec, StepSpec, TrainSpec, TuneSpec


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

    def driver_command(self) -> str: ...

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
    token: str | None = field(default=None, repr=False)
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    verify: bool | str = True
    autoscaling: bool = False
    python: str = "python"
    env_vars: dict[str, str] = field(default_factory=dict, repr=False)
    env_files: dict[str, str] = field(default_factory=dict, repr=False)
    shares_this_machine: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if urlsplit(self.address).scheme not in ("http", "https") or not urlsplit(self.address).netloc:
            raise SpecError(f"address: given {self.address!r}; accepted is a URL like http://host:8265")

    @property
    def identity(self) -> str:
        return self.address.rstrip("/")

    async def connect(self) -> JobsClient:
        return JobsClient(self.address, self.token or os.environ.get("RAY_AUTH_TOKEN"), self.headers, self.verify)

    def driver_command(self) -> str:
        return f"{self.python} -m plugin_core.driver"

    def reference(self) -> dict[str, Any]:
        return {"address": self.address, "verify": self.verify, "python": self.python}


@dataclass(frozen=True)
class LocalCluster(Standing):
    """The embedded cluster: one Ray head per user and Python environment, on loopback, shared by steps and processes.

    It is started when first needed, kept warm, and stopped after `idle_timeout_s` without a job. `num_cpus` is what it
    advertises when this step is the one that starts it (default: the machine's cores, but at least 4, so that two
    workers and Ray Data fit on a small machine). `env_vars`, `env_files`: as in RayCluster.
    """

    num_cpus: int | None = None
    num_gpus: int | None = None
    idle_timeout_s: float = 300.0
    env_vars: dict[str, str] = field(default_factory=dict, repr=False, hash=False)
    env_files: dict[str, str] = field(default_factory=dict, repr=False, hash=False)
    autoscaling: bool = field(default=False, init=False)
    shares_this_machine: bool = field(default=True, init=False)

    @property
    def identity(self) -> str:
        from plugin_core import local_head

        return f"local head of {socket.gethostname()}:{local_head.state_dir()}"

    async def connect(self) -> JobsClient:
        from plugin_core import local_head

        head = await asyncio.to_thread(local_head.ensure, self.num_cpus, self.num_gpus, self.idle_timeout_s)
        return JobsClient(head.address, head.token)

    async def lives(self) -> bool:
        from plugin_core import local_head

        return local_head.current() is not None

    def driver_command(self) -> str:
        return f"{sys.executable} -m plugin_core.driver"


def find(reference: dict[str, Any]) -> Cluster:
    """The cluster of this `reference`; its secrets, if it takes any, come from the environment."""
    if kuberay := reference.get("kuberay"):
        from plugin_core.kuberay import from_json

        return from_json(kuberay)
    return RayCluster(**reference) if reference else LocalCluster()


def required_bundles(spec: StepSpec) -> list[dict[str, float]]:
    """What the step takes at once at the least, one dict a process (CPUs and GPUs; Ray's units for the rest)."""
    if isinstance(spec, TuneSpec):
        return required_bundles(spec.train)  # of one trial
    if isinstance(spec, RetrainSpec):
        # the parts run one after the other
        return max(required_bundles(spec.train), required_bundles(spec.evaluate), key=lambda b: together(b).get("CPU", 0.0))
    if isinstance(spec, TrainSpec):
        scaling = spec.scaling_config
        bundles = [scaling.worker_resources() for _ in range(scaling.worker_range[0])]
        # Ray Data reads on CPUs that the workers leave free; with none left it waits for ever
        return [*bundles, {"CPU": 1.0}] if spec.datasets else bundles
    if isinstance(spec, Evaluation) and spec.evaluate is not None:
        own = [{"CPU": spec.num_cpus, "GPU": spec.num_gpus}]
        return [*own, {"CPU": 1.0}] if spec.dataset else own
    if isinstance(spec, (Evaluation, BatchInferSpec)):
        actors = spec.concurrency[0] if isinstance(spec.concurrency, tuple) else spec.concurrency
        return [{"CPU": spec.num_cpus, "GPU": spec.num_gpus} for _ in range(actors)] + [{"CPU": 1.0}]
    return []


def together(bundles: list[dict[str, float]]) -> dict[str, float]:
    """What these processes take in sum."""
    return {name: sum(bundle.get(name, 0.0) for bundle in bundles) for name in {name for b in bundles for name in b}}


def check_fits(spec: StepSpec, nodes: list[dict[str, Any]]) -> None:
    """Raise InfeasibleError when the step asks for more than these nodes have, even empty."""
    bundles = required_bundles(spec)
    have: dict[str, float] = {}
    for node in nodes:
        for name, amount in node.get("resources_total", {}).items():
            have[name] = have.get(name, 0.0) + amount
    if not nodes:
        return
    for name, wanted in sorted(together(bundles).items()):
        if wanted > have.get(name, 0.0):
            raise InfeasibleError(
                f"{_resource_field(spec)}: infeasible, the step takes {wanted:g} {name}"
                f"{_explain(spec, name)}; accepted is up to {have.get(name, 0.0):g} {name}, all that the cluster has"
            )
    for bundle in bundles:
        if not any(
            all(node.get("resources_total", {}).get(name, 0.0) >= amount for name, amount in bundle.items() if amount)
            for node in nodes
        ):
            shape = ", ".join(f"{amount:g} {name}" for name, amount in bundle.items())
            raise InfeasibleError(
                f"{_resource_field(spec)}: infeasible, one process takes {shape}; accepted is what fits on one of the"
                f" cluster's {len(nodes)} nodes"
            )


def _resource_field(spec: StepSpec) -> str:
    if isinstance(spec, (TuneSpec, RetrainSpec)):
        return "train.scaling_config"
    return "scaling_config" if isinstance(spec, TrainSpec) else "num_cpus/num_gpus"


def _explain(spec: StepSpec, name: str) -> str:
    reads = getattr(spec, "datasets", None) or getattr(spec, "dataset", None)
    return " (1 of them for Ray Data to read the datasets)" if reads and name == "CPU" else ""
