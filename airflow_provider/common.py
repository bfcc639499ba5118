"""What the operators and the trigger share: logging, errors as data, the task's state."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from plugin_core.engine import Event, Listener, RayTrainWorkflowsError

#: States after which nobody waits for the run any more. In every other one (deferred, queued, running, restarting, or none
#: yet, just after a clear) the task goes on with it.
_OVER = frozenset({"failed", "success", "skipped", "upstream_failed", "removed", "gone"})
#: A traceback travels through Airflow's database with the trigger's event.
DETAILS_CHARS = 16_000
#: Under this key a task's state store holds where its run is.
RUN_KEY = "ray_run"
HEALTH_TIMEOUT_S = 3.0


def teller(log: Any, *kinds: str) -> Listener:
    """A listener that writes a run's events into the task's log: all of them, or those of the given kinds."""

    def tell(event: Event) -> None:
        if kinds and event.kind not in kinds:
            return
        lines = event.text.splitlines()
        if event.kind == "log":
            # folded in the UI, under the last of its lines
            lines = [f"::group::Ray job's log, {len(lines)} lines … {lines[-1][:100]}", *lines, "::endgroup::"]
        for line in lines:
            log.info("%s", line)

    return tell


def metadata(ti: Any) -> dict[str, str]:
    """Which task a Ray job belongs to, shown by `ray job list` and by trackers."""
    if ti is None:
        return {}
    ids = {"dag_id": ti.dag_id, "run_id": ti.run_id, "task_id": ti.task_id, "map_index": ti.map_index}
    page = {"engine_url": ti.log_url} if getattr(ti, "log_url", None) else {}
    return {"orchestrator": "airflow", **{f"airflow_{name}": str(value) for name, value in ids.items()}, **page}


def request_of(ti: Any) -> str:
    """Who asks for the task's run: equal for automatic retries, another one after a person's clear.

    A clear raises `max_tries` (`clear_task_instances` in Airflow's models/taskinstance.py), a retry does not. A clear of a
    task that runs does not raise it either; then no result was handed over yet, and both mean to go on with the run.
    """
    return f"{ti.run_id}#{getattr(ti, 'max_tries', 0)}"


def error_payload(exc: RayTrainWorkflowsError) -> dict[str, Any]:
    """An error as the trigger's event carries it."""
    return {
        "status": "error",
        "error": type(exc).__name__,
        "outcome": exc.outcome,
        "message": exc.message,
        "details": getattr(exc, "details", "")[-DETAILS_CHARS:],
        "retryable": exc.retryable,
    }


def task_state(ti: Any) -> str | None:
    """The task's state as the database has it now; "gone" when there is no such task any more. Blocks."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    mapped = ti.map_index is not None and ti.map_index >= 0
    states = RuntimeTaskInstance.get_task_states(
        dag_id=ti.dag_id, task_ids=[ti.task_id], run_ids=[ti.run_id], map_index=ti.map_index if mapped else None
    ).get(ti.run_id, {})
    # Airflow writes a mapped task's key like this
    state: str | None = states.get(f"{ti.task_id}_{ti.map_index}" if mapped else ti.task_id, "gone")
    return state


def without_triggerer() -> str:
    """A sentence when no triggerer is alive, as far as the API server tells; "" when one is, or nobody tells. Blocks."""
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
        f"no triggerer is alive (its health: {status}); the Ray job runs, and this task stays deferred until a triggerer is"
        " started (`airflow triggerer`); deferrable=False does without one"
    )


def over(state: str | None) -> bool:
    return state in _OVER
