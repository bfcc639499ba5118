"""Blocks: a named Ray cluster, and a stored training job."""

from __future__ import annotations

from typing import Any, Self

from prefect.blocks.abstract import JobBlock, JobRun
from prefect.blocks.core import Block
from prefect.types import SecretDict
from pydantic import Field, HttpUrl, SecretStr, model_validator

from plugin_core.engine import (
    Cluster,
    LocalCluster,
    SpecError,
    StepResult,
    StepSpec,
    as_spec,
    describe_cluster,
    kuberay_from_json,
    run_sync,
)
from plugin_core.engine import RayCluster as CoreCluster
from prefect_integration.step import Step

_DOCUMENTATION = HttpUrl("https://docs.ray.io/en/latest/cluster/running-applications/job-submission/index.html")


class RayCluster(Block):
    """Where training steps run: an existing Ray cluster, one on Kubernetes, or the embedded local cluster.

    Example:
        Load a stored cluster and train on it:
        ```python
        from prefect_integration import RayCluster, train

        cluster = RayCluster.load("BLOCK_NAME")
        result = train(spec, cluster=cluster)
        ```
    """

    _block_type_name = "Ray Cluster"
    _block_type_slug = "ray-cluster"
    _documentation_url = _DOCUMENTATION

    address: str | None = Field(None, description="URL of the cluster's dashboard, e.g. http://ray-head:8265.")
    local: bool = Field(False, description="Use the embedded cluster of the machine that runs the flow.")
    kuberay: dict[str, Any] | None = Field(
        None, description="One cluster per run on Kubernetes: the fields of a plugin_core.KubeRayCluster."
    )
    token: SecretStr | None = Field(None, description="Ray auth token; default: RAY_AUTH_TOKEN in the environment.")
    headers: SecretDict | None = Field(None, description="HTTP headers for each request, e.g. for a proxy.")
    verify: bool = Field(True, description="Verify the certificate of an https address.")
    ca_file: str | None = Field(None, description="File with CA certificates to verify against.")
    cert_file: str | None = Field(None, description="PEM file with a client certificate and its key, for mutual TLS.")
    runtime_env: dict[str, Any] = Field(
        default_factory=dict,
        description="Ray runtime_env; each step's overrides it. Stored in the run directory, so not for secrets.",
    )
    env_vars: SecretDict | None = Field(
        None, description="Environment variables of each job, e.g. credentials; never stored in a run directory."
    )
    env_files: SecretDict | None = Field(
        None, description="Variable to file content; in each job the variable names such a file: credentials files."
    )
    autoscaling: bool = Field(False, description="Nodes can be added: wait instead of rejecting what does not fit.")
    python: str = Field("python", description="The cluster's Python that has ray-train-workflows installed.")
    ship_package: bool = Field(False, description="ray-train-workflows is not installed there: each job brings it.")
    dashboard_url: str | None = Field(None, description="The dashboard's address for browsers, used in links.")
    num_cpus: int | None = Field(None, description="Local: CPUs to advertise if this starts the cluster.")
    num_gpus: int | None = Field(None, description="Local: GPUs to advertise if this starts the cluster.")
    idle_timeout_s: float = Field(300.0, gt=0, description="Local: stop after this many seconds without a job.")
    preload: bool = Field(True, description="Local: import torch, pandas and pyarrow once for all workers (Linux).")
    full_dashboard: bool = Field(False, description="Local: all pages of Ray's dashboard; metrics, Train, Data, Serve too.")

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        given = [name for name in ("address", "local", "kuberay") if getattr(self, name)]
        if len(given) != 1:
            raise ValueError(
                f"address: got {' and '.join(given) or 'nothing'}; expected one of address, a URL like http://host:8265,"
                " local=True for the embedded cluster, and kuberay"
            )
        self.get_cluster()
        return self

    def get_cluster(self) -> Cluster:
        """Return the core's cluster object."""
        env_vars, env_files = _revealed(self.env_vars), _revealed(self.env_files)
        if self.local:
            return LocalCluster(
                self.num_cpus,
                self.num_gpus,
                self.idle_timeout_s,
                env_vars,
                env_files,
                preload=self.preload,
                full_dashboard=self.full_dashboard,
            )
        common: dict[str, Any] = {
            "token": self.token.get_secret_value() if self.token else None,
            "headers": _revealed(self.headers),
            "verify": self.ca_file or self.verify,
            "python": self.python,
            "env_vars": env_vars,
            "env_files": env_files,
            "ship_package": self.ship_package,
        }
        if self.kuberay:
            return kuberay_from_json(self.kuberay, **common)
        return CoreCluster(self.address or "", autoscaling=self.autoscaling, cert=self.cert_file, **common)

    def test(self) -> str:
        """Describe the cluster in one line. Raises ClusterUnreachableError or ClusterRefusedError."""
        return run_sync(self.atest())

    async def atest(self) -> str:
        """Async version of `test`."""
        return await describe_cluster(self.get_cluster())


def _revealed(secret: SecretDict | None) -> dict[str, str]:
    return {name: str(value) for name, value in secret.get_secret_value().items()} if secret else {}


class RayTrainJob(JobBlock[StepResult]):
    """A step on a Ray cluster (training, evaluation or batch inference), stored as data.

    Example:
        Load a stored job, run it and use its result:
        ```python
        from prefect_integration import RayTrainJob

        job = RayTrainJob.load("BLOCK_NAME")
        run = job.trigger()
        run.wait_for_completion()
        checkpoint = run.fetch_result().checkpoint
        ```
    """

    _block_type_name = "Ray Train Job"
    _block_type_slug = "ray-train-job"
    _documentation_url = _DOCUMENTATION

    spec: dict[str, Any] = Field(
        default=..., description="The step's fields, functions as 'package.module:function', as in a YAML spec."
    )
    cluster: RayCluster | None = Field(None, description="Where it runs; default: the embedded local cluster.")
    key: str | None = Field(None, description="Names the step in a flow; outside a flow the spec needs run_config.name.")

    @model_validator(mode="after")
    def _is_a_spec(self) -> Self:
        as_spec(self.spec, StepSpec)
        return self

    def trigger(self) -> RayTrainJobRun:  # type: ignore[override]
        """Submit the job, or find the one this flow run already submitted. Raises SpecError and its subclasses."""
        return run_sync(self.atrigger())

    async def atrigger(self) -> RayTrainJobRun:
        """Async version of `trigger`."""
        step = Step(self.spec, StepSpec, self.cluster, self.key, self.logger)
        await step.submit()
        return RayTrainJobRun(step)


class RayTrainJobRun(JobRun[StepResult]):
    """A triggered step. It survives this process; `trigger` finds it again."""

    def __init__(self, step: Step):
        self._step = step
        self._result: StepResult | None = None

    @property
    def run_directory(self) -> str:
        """The URI of the run's directory."""
        return self._step.rundir.uri

    def wait_for_completion(self) -> None:  # type: ignore[override]
        """Follow the job to its end, with its reports and log in this logger. Raises the same errors as the tasks."""
        self._result = self._step.run_sync()

    async def await_for_completion(self) -> None:
        """Async version of `wait_for_completion`."""
        self._result = await self._step.run_async()

    def fetch_result(self) -> StepResult:  # type: ignore[override]
        """Return the typed result. Raises SpecError while there is none."""
        found = self._result or self._step.rundir.result()
        if found is None:
            raise SpecError(f"run: got {self.run_directory!r}, which has no result yet; expected a finished run")
        return found.reference()

    def cancel(self) -> str:
        """Stop the job and wait until its processes are gone; return "cancelled", or "finished" if it was already over."""
        return run_sync(self._step.acancel())

    async def acancel(self) -> str:
        """Async version of `cancel`."""
        return await self._step.acancel()
