"""Shared by the operators and the trigger: logging, errors as data, the task's state."""

from __future__ import annotations

import json
import urllib.request
from datetime import UTC, datetime
from typing import Any

from plugin_core.engine import Line, Log, RayTrainWorkflowsError

#: States in which nobody waits for the run any more. In all others (deferred, queued, running, restarting, or none just
#: after a clear) the task will continue it.
_OVER = frozenset({"failed", "success", "skipped", "upstream_failed", "removed", "gone"})
#: The maximum length of a traceback, which goes through Airflow's database with the trigger's event.
DETAILS_CHARS = 16_000
#: The key of the run's URI in a task's state store.
RUN_KEY = "ray_run"
#: The key of the connection whose cluster the steps of the DAG run share.
SHARED_KEY = "ray_shared_cluster"
HEALTH_TIMEOUT_S = 3.0
#: If a job logs more lines than this at once, the UI folds them under the most severe one.
FOLDED = 5


def writer(log: Any) -> Log:
    """Return a function that writes a run's lines to the task's log, each with the time of its event."""

    def write(line: Line) -> None:
        texts = [line.text]
        if len(line.lines) > FOLDED:
            # the job's own lines must not begin or end a group
            inside = (f" {text}" if text.startswith("::") else text for text in line.lines)
            texts = [f"::group::{line.text}", *inside, "::endgroup::"]
        elif line.lines:
            texts = list(line.lines)
        when = datetime.fromtimestamp(line.time, UTC).isoformat()
        for text in texts:
            log.log(line.level, "%s", text, timestamp=when)  # structlog keeps a given timestamp

    return write


def metadata(ti: Any) -> dict[str, str]:
    """The task a Ray job belongs to, as shown by `ray job list` and by trackers."""
    if ti is None:
        return {}
    ids = {"dag_id": ti.dag_id, "run_id": ti.run_id, "task_id": ti.task_id, "map_index": ti.map_index}
    page = {"engine_url": ti.log_url} if getattr(ti, "log_url", None) else {}
    return {"orchestrator": "airflow", **{f"airflow_{name}": str(value) for name, value in ids.items()}, **page}


def request_of(ti: Any) -> str:
    """The id of a request for the task's run: the same for automatic retries, a new one after a person's clear.

    A clear increments `max_tries` (`clear_task_instances` in Airflow's models/taskinstance.py), a retry does not. Clearing
    a running task does not either, but then no result was delivered yet, and both mean continuing the run.
    """
    return f"{ti.run_id}#{getattr(ti, 'max_tries', 0)}"


def error_payload(exc: RayTrainWorkflowsError) -> dict[str, Any]:
    """Convert an error to the payload of the trigger's event."""
    return {
        "status": "error",
        "error": type(exc).__name__,
        "outcome": exc.outcome,
        "message": exc.message,
        "details": exc.details[-DETAILS_CHARS:],
        "retryable": exc.retryable,
    }


def task_state(ti: Any) -> str | None:
    """Return the task's current state in the database; "gone" if the task no longer exists. Blocks."""
    from airflow.sdk.execution_time import task_runner

    if ti is None or getattr(task_runner, "SUPERVISOR_COMMS", None) is None:
        return "running"  # a test without Airflow's servers, so nobody can end the task
    mapped = ti.map_index is not None and ti.map_index >= 0
    states = task_runner.RuntimeTaskInstance.get_task_states(
        dag_id=ti.dag_id, task_ids=[ti.task_id], run_ids=[ti.run_id], map_index=ti.map_index if mapped else None
    ).get(ti.run_id, {})
    # Airflow's key for a mapped task
    state: str | None = states.get(f"{ti.task_id}_{ti.map_index}" if mapped else ti.task_id, "gone")
    return state


def without_triggerer() -> str:
    """Return a warning if the API server reports no live triggerer; "" if there is one or this is unknown. Blocks."""
    from airflow.providers.common.compat.sdk import conf

    api = conf.get("core", "execution_api_server_url", fallback=None) or conf.get("api", "base_url", fallback=None) or ""
    url = f"{api.rstrip('/').removesuffix('/execution')}/api/v2/monitor/health"
    try:
        with urllib.request.urlopen(url, timeout=HEALTH_TIMEOUT_S) as response:
            status = (json.loads(response.read()).get("triggerer") or {}).get("status")
    except (OSError, ValueError):
        return ""
    if status == "healthy":
        return ""
    return (
        f"no triggerer is alive (its health: {status}); the Ray job runs, but this task stays deferred until a triggerer is"
        " started (`airflow triggerer`); deferrable=False needs none"
    )


def over(state: str | None) -> bool:
    return state in _OVER
