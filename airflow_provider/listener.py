"""Cancels the runs of tasks that a person ends, from Airflow's own servers.

A deferred task's run is cancelled by its trigger, a running one's by its process. This one holds when neither is there: no
triggerer alive, the worker's machine gone. Airflow calls it in the API server when a person marks a task or a DAG run, and
in the scheduler when a DAG run times out.
"""

from __future__ import annotations

import json
import logging
import threading
from typing import Any

from airflow.listeners import hookimpl

from airflow_provider.common import RUN_KEY

logger = logging.getLogger(__name__)


@hookimpl
def on_task_instance_failed(previous_state: Any, task_instance: Any, error: Any) -> None:
    _marked(previous_state, task_instance)


@hookimpl
def on_task_instance_success(previous_state: Any, task_instance: Any) -> None:
    _marked(previous_state, task_instance)


@hookimpl
def on_task_instance_skipped(previous_state: Any, task_instance: Any) -> None:
    _marked(previous_state, task_instance)


@hookimpl
def on_dag_run_failed(dag_run: Any, msg: str) -> None:
    if msg == "timed_out":  # every other way is a mark of its tasks, or their own end
        _cancel_runs_of(dag_run, dag_id=dag_run.dag_id, run_id=dag_run.run_id)


def _marked(previous_state: Any, ti: Any) -> None:
    if previous_state is None:  # a mark by a person; a task's own end tells what it was before
        _cancel_runs_of(ti, dag_id=ti.dag_id, run_id=ti.run_id, task_id=ti.task_id, map_index=ti.map_index)


def _cancel_runs_of(row: Any, **ids: Any) -> None:
    from airflow.models.task_state_store import TaskStateStoreModel
    from sqlalchemy import select
    from sqlalchemy.orm import object_session

    session = object_session(row)
    if session is None:
        return
    query = select(TaskStateStoreModel.value).filter_by(key=RUN_KEY, **ids)
    for value in session.scalars(query).all():
        kept = json.loads(value)
        if isinstance(kept, dict) and "uri" in kept:
            # not in the request of the person who waits for the page
            threading.Thread(target=_cancel, args=(kept,), name=f"cancel {kept['uri']}", daemon=True).start()


def _cancel(kept: dict[str, Any]) -> None:
    from airflow_provider.hooks import RayJobsHook
    from plugin_core import local_head
    from plugin_core.clusters import LocalCluster
    from plugin_core.rundir import RunDir
    from plugin_core.supervisor import cancel

    try:
        rundir = RunDir.at(kept["uri"])
        attempt = rundir.latest()
        if not attempt or rundir.end(attempt) is not None:
            return
        # said where the driver reads it: this holds whatever happens next
        rundir.cancel(attempt)
        cluster = RayJobsHook(kept["ray_conn_id"]).get_cluster()
        if isinstance(cluster, LocalCluster) and local_head.current() is None:
            return  # asking would start one
        logger.info("%s: %s", rundir.uri, cancel(rundir, cluster))
    except Exception:
        # the trigger or the task's own process cancels too; an error here must not end a thread of the server unheard
        logger.exception("cancelling the Ray run of %s", kept["uri"])
