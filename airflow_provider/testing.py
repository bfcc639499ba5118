"""A real headless Airflow for tests and demos, with its own home, driven over REST."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Self

import psutil

from plugin_core.engine import free_ports, wait_for_end

OVER = frozenset({"success", "failed"})


class AirflowServer:
    """A context manager that runs scheduler, triggerer, DAG processor and API server on free ports, with SQLite.

    `home` gets Airflow's files, `dags` is the folder of DAG files, `environment` is added to every process's environment
    (and to that of Ray jobs on the embedded head, if a task starts it). Each part is a separate process in its own session,
    so that a test can kill and restart it: `kill("triggerer")`, `start("triggerer")`.
    """

    START_TIMEOUT_S = 240.0
    PARTS = ("api-server", "scheduler", "dag-processor", "triggerer")

    def __init__(self, home: Path, dags: Path, environment: dict[str, str] | None = None):
        self.home = home
        self._port, worker_log_port, trigger_log_port = free_ports(3)
        settings = {
            "CORE__DAGS_FOLDER": str(dags),
            "CORE__LOAD_EXAMPLES": "False",
            "CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "CORE__PARALLELISM": "4",
            "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "CORE__TEST_CONNECTION": "Enabled",
            "CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "API__HOST": "127.0.0.1",
            "API__PORT": str(self._port),
            "API__WORKERS": "1",
            "API__SECRET_KEY": secrets.token_hex(),
            "API_AUTH__JWT_SECRET": secrets.token_hex(32),
            "DAG_PROCESSOR__REFRESH_INTERVAL": "5",
            "LOGGING__WORKER_LOG_SERVER_HOST": "127.0.0.1",
            "LOGGING__WORKER_LOG_SERVER_PORT": str(worker_log_port),
            "LOGGING__TRIGGER_LOG_SERVER_PORT": str(trigger_log_port),
            "WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
        }
        kept = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW__")}
        self._environment = {
            **kept,
            **{f"AIRFLOW__{key}": value for key, value in settings.items()},
            "AIRFLOW_HOME": str(home),
            # Airflow's parts start each other as `airflow …`
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
            "NO_PROXY": "127.0.0.1,localhost",
            **(environment or {}),
        }
        self._started: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._token = ""

    def __enter__(self) -> Self:
        self.home.mkdir(parents=True, exist_ok=True)
        try:
            if self._airflow("db migrate").wait(self.START_TIMEOUT_S):
                raise RuntimeError(f"`airflow db migrate` failed; its log ends with:\n{self._tail('db')}")
            for part in self.PARTS:
                self._airflow(part)
            self._wait_until_healthy(*self.PARTS)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Where a browser finds it; everyone is an administrator."""
        return f"http://127.0.0.1:{self._port}"

    def start(self, part: str) -> None:
        """Start or restart one of `PARTS` (or start another instance), and wait until Airflow reports it healthy."""
        self._airflow(part)
        self._wait_until_healthy(part)

    def kill(self, part: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to all processes of a part; if it is fatal, wait until they are gone."""
        processes = self.processes(part)
        for process in processes:
            _signal(process, number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            wait_for_end(processes, 30.0)

    def stop(self) -> None:
        """End all of Airflow's processes and wait until they are gone."""
        for sent in (signal.SIGTERM, signal.SIGKILL):
            left = self.processes()
            for process in left:
                _signal(process, signal.SIGCONT)
                _signal(process, sent)
            wait_for_end(left, 10.0)
            for _, started in self._started:
                started.poll()
            if not self.processes():
                return
        raise RuntimeError(f"Airflow processes are still running: {self.processes()}")

    def command(self, *words: str, timeout_s: float = 300) -> str:
        """Run `airflow …` to its end in this Airflow's environment; return its output."""
        done = subprocess.run(
            [sys.executable, "-m", "airflow", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._environment,
            cwd=self.home,
            timeout=timeout_s,
        )
        return done.stdout

    def processes(self, part: str | None = None) -> list[psutil.Process]:
        """The live processes of Airflow (or of one part), including orphans."""
        sessions = {process.pid for name, process in self._started if part is None or name == part}
        return [process for process in psutil.process_iter() if _session(process.pid) in sessions and _lives(process)]

    def log(self, part: str) -> str:
        return (self.home / f"{part.split()[0]}.log").read_text(errors="replace")

    def _airflow(self, command: str) -> subprocess.Popen[bytes]:
        with (self.home / f"{command.split()[0]}.log").open("ab") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", "airflow", *command.split()],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env=self._environment,
                cwd=self.home,
                start_new_session=True,
            )
        self._started.append((command, process))
        return process

    # ---- REST

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """Call the REST API under `/api/v2`. Raises urllib's HTTPError."""
        return self._call(method, f"/api/v2{path}", body, {"Authorization": f"Bearer {self._token}"})

    def trigger(self, dag_id: str, conf: dict[str, Any] | None = None, timeout_s: float = 120) -> str:
        """Start a DAG run as soon as the DAG is parsed; return its id."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self.request("GET", f"/dags/{dag_id}")
                break
            except urllib.error.HTTPError as exc:
                errors = self.request("GET", "/importErrors")["import_errors"]
                if exc.code != 404 or errors or time.monotonic() > deadline:
                    said = "\n".join(error["stack_trace"] for error in errors)
                    raise RuntimeError(f"there is no DAG {dag_id!r}: {said or exc}") from exc
                time.sleep(0.5)
        run = self.request("POST", f"/dags/{dag_id}/dagRuns", {"conf": conf or {}, "logical_date": None})
        return str(run["dag_run_id"])

    def run_state(self, dag_id: str, run_id: str) -> str:
        return str(self.request("GET", f"/dags/{dag_id}/dagRuns/{run_id}")["state"])

    def task(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        instance: dict[str, Any] = self.request("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}")
        return instance

    def mapped_states(self, dag_id: str, run_id: str, task_id: str) -> dict[int, str | None]:
        instances = self.request("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/listMapped")
        return {instance["map_index"]: instance["state"] for instance in instances["task_instances"]}

    def task_states(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        instances = self.request("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"]
        return {instance["task_id"]: instance["state"] for instance in instances}

    def wait_for_task(self, dag_id: str, run_id: str, task_id: str, states: set[str], timeout_s: float = 300) -> str:
        """Wait until the task is in one of `states` or has failed; return its state."""
        return str(
            _wait(
                f"task {task_id} of {dag_id} to be {' or '.join(sorted(states))}",
                timeout_s,
                lambda: (
                    state
                    if (state := self.task(dag_id, run_id, task_id)["state"]) in states | {"failed", "upstream_failed"}
                    else None
                ),
            )
        )

    def wait(self, dag_id: str, run_id: str, timeout_s: float = 400) -> str:
        """Wait until the DAG run is over; return its state."""
        return str(
            _wait(
                f"run {run_id} of {dag_id} to end",
                timeout_s,
                lambda: state if (state := self.run_state(dag_id, run_id)) in OVER else None,
            )
        )

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value") -> Any:
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/{key}?stringify=false"
        return self.request("GET", path)["value"]

    def set_task_state(self, dag_id: str, run_id: str, task_id: str, state: str, map_index: int | None = None) -> None:
        """Do what the buttons "mark as failed" and "mark as success" do."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}"
        self.request("PATCH", path if map_index is None else f"{path}/{map_index}", {"new_state": state})

    def set_run_state(self, dag_id: str, run_id: str, state: str) -> None:
        self.request("PATCH", f"/dags/{dag_id}/dagRuns/{run_id}", {"state": state})

    def clear(self, dag_id: str, run_id: str, task_id: str) -> None:
        body = {"dry_run": False, "dag_run_id": run_id, "task_ids": [task_id], "only_failed": False}
        self.request("POST", f"/dags/{dag_id}/clearTaskInstances", {**body, "reset_dag_runs": True})

    def task_log(self, dag_id: str, run_id: str, task_id: str, try_number: int = 1) -> str:
        answer = self.request("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{try_number}")
        return json.dumps(answer["content"], ensure_ascii=False)

    def _call(self, method: str, path: str, body: Any, headers: dict[str, str]) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {**headers, "Content-Type": "application/json", "Accept": "application/json"}
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.loads(response.read() or b"null")

    def _wait_until_healthy(self, *parts: str) -> None:
        def healthy() -> bool:
            for part in parts:
                newest = [process for name, process in self._started if name == part][-1]
                if newest.poll() is not None:
                    raise RuntimeError(f"Airflow's {part} did not start; its log ends with:\n{self._tail(part)}")
            try:
                health = self._call("GET", "/api/v2/monitor/health", None, {})
                names = {"api-server": "metadatabase", "dag-processor": "dag_processor"}
                if any((health.get(names.get(part, part)) or {}).get("status") != "healthy" for part in parts):
                    return False
                # The first request for the execution API builds all its versions and blocks the server meanwhile, on a
                # busy machine for 6 to 30 s. A task would have to ask again, and our own requests would time out.
                self._call("GET", "/execution/health", None, {})
                self._token = self._call("GET", "/auth/token", None, {})["access_token"]
            except OSError:
                return False
            return True

        try:
            _wait("Airflow to be healthy", self.START_TIMEOUT_S, healthy)
        except TimeoutError as exc:
            tails = "\n".join(f"--- {part}\n{self._tail(part)}" for part in parts)
            raise TimeoutError(f"{exc}; the logs end with:\n{tails}") from None

    def _tail(self, part: str) -> str:
        return "\n".join(self.log(part).splitlines()[-25:])


def _wait(what: str, timeout_s: float, look: Any) -> Any:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.5)
    raise TimeoutError(f"waited {timeout_s:.0f} s for {what}")


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _signal(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        pass
