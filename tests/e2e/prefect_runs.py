"""Flow runs for the tests: started from a shell, by a served deployment or by a worker, and found on server and storage."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    DeploymentFilter,
    FlowFilter,
    FlowRunFilter,
    LogFilter,
)
from prefect.client.schemas.objects import FlowRun, TaskRun
from prefect.states import Cancelling

from plugin_core import LocalCluster
from plugin_core.runs.directory import RunDir
from plugin_core.supervisor.supervisor import run_sync

ROOT = Path(__file__).resolve().parents[2]
#: What a process that runs flows is told, beside the server's address: to look for work often.
SETTINGS = {
    "PREFECT_RUNNER_POLL_FREQUENCY": "2",
    "PREFECT_WORKER_QUERY_SECONDS": "2",
    "PREFECT_WORKER_PREFETCH_SECONDS": "0",
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
    "PREFECT_RUNNER_SERVER_ENABLE": "false",
    "PYTHONPATH": str(ROOT),
}


def wait_until(true: Callable[[], Any], what: str = "it", timeout_s: float = 600) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, f"{what} did not come true in time"
        time.sleep(0.3)


class Process:
    """A process that runs flows, with everything it starts."""

    def __init__(self, command: list[str], log: Path, **environment: str):
        self.log = log
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, *command],
                stdout=file,
                stderr=file,
                cwd=ROOT,
                env={**os.environ, **SETTINGS, **environment},
                start_new_session=True,
            )

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self._process.pid).children(recursive=True)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Kill the process alone; its children live on."""
        os.kill(self._process.pid, number)
        self._process.wait(timeout=60)

    def wait(self, timeout: float = 240) -> int:
        return self._process.wait(timeout)

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    def close(self) -> None:
        """End it and everything in its session."""
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) == self._process.pid:
                    process.kill()
            except (psutil.NoSuchProcess, ProcessLookupError):
                pass
        self._process.wait(timeout=10)


class Run:
    """One flow run: what the server says about it, and what its steps wrote."""

    def __init__(self, client: SyncPrefectClient, flow_run_id: UUID, storage: Path):
        self.client = client
        self.id = flow_run_id
        self.storage = storage

    @property
    def flow_run(self) -> FlowRun:
        return self.client.read_flow_run(self.id)

    @property
    def state(self) -> str:
        return str(self.flow_run.state_name)

    def tasks(self) -> list[TaskRun]:
        found = self.client.read_task_runs(flow_run_filter=FlowRunFilter(id={"any_": [self.id]}))
        return sorted(found, key=lambda task: task.created)

    def log(self) -> list[str]:
        lines = self.client.read_logs(LogFilter(flow_run_id={"any_": [self.id]}), limit=200)
        return [line.message for line in lines]

    def artifacts(self) -> dict[str, Any]:
        """By key, or by type where there is none; the newest of each."""
        found = self.client.read_artifacts(
            artifact_filter=ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[self.id]))
        )
        found = sorted(found, key=lambda artifact: artifact.created)
        return {str(artifact.key or artifact.type): artifact for artifact in found}

    def cancel(self) -> None:
        """What the button in the UI does."""
        self.client.set_flow_run_state(self.id, Cancelling())

    # ---- the steps

    def rundirs(self) -> list[RunDir]:
        return [RunDir.at(str(folder)) for folder in sorted(self.storage.glob(f"{self.id}--*"))]

    def reports(self) -> list[dict[str, Any]]:
        lines = [
            json.loads(line)
            for rundir in self.rundirs()
            for file in sorted(Path(rundir.uri, ".step", "journal").glob("*.jsonl"))
            for line in file.read_text().splitlines()
        ]
        return [line for line in lines if "report" in line]

    def wait_for_training(self, steps: int = 1) -> None:
        def training() -> bool:
            return len([rundir for rundir in self.rundirs() if any(Path(rundir.uri).glob(".step/journal/*"))]) >= steps

        wait_until(lambda: training() and bool(self.reports()), f"the training of {self.id}")

    def wait_for(self, state: str, timeout_s: float = 600) -> None:
        wait_until(lambda: self.state == state, f"{state} of {self.id}, which is {self.state},", timeout_s)

    def job_states(self) -> list[str]:
        """What Ray says of every job that the steps had."""
        receipts = [rundir.receipt(attempt) for rundir in self.rundirs() for attempt in rundir.receipts()]

        async def ask() -> list[str]:
            async with await LocalCluster().connect() as cluster:
                return [(await cluster.job(receipt.submission_id)).status for receipt in receipts if receipt]

        return run_sync(ask())


def wait_for_deployment(client: SyncPrefectClient, deployment: str) -> UUID:
    flow, name = deployment.split("/")

    def found() -> list[Any]:
        return client.read_deployments(
            flow_filter=FlowFilter(name={"any_": [flow]}), deployment_filter=DeploymentFilter(name={"any_": [name]})
        )

    wait_until(found, f"the deployment {deployment}")
    return UUID(str(found()[0].id))


def start(client: SyncPrefectClient, deployment: str, storage: Path) -> Run:
    """A flow run of a deployment, as soon as the deployment exists."""
    place = {"storage": str(storage)}
    flow_run = client.create_flow_run_from_deployment(wait_for_deployment(client, deployment), parameters=place)
    return Run(client, flow_run.id, storage)


def only_run(client: SyncPrefectClient, storage: Path) -> Run:
    """The flow run that keeps its steps in this storage."""
    wait_until(lambda: any(storage.glob("*--*")), "a run directory")
    (flow_run_id,) = {folder.name.split("--")[0] for folder in storage.glob("*--*")}
    (flow_run,) = client.read_flow_runs(flow_run_filter=FlowRunFilter(id={"any_": [flow_run_id]}))
    return Run(client, flow_run.id, storage)
