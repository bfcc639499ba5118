"""Cancel the runs of tasks that are over, from Airflow's own servers.

Normally the trigger cancels a deferred task's run, and the task's process a running one's. This listener covers the case
where neither exists: no triggerer is alive, or the task's process was killed. Airflow calls it in the API server when a
person marks a task or a DAG run, and in the scheduler when a task is lost or a DAG run ends (also on timeout).
"""

from __future__ import annotations

import asyncio
import functools
import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from airflow.listeners import hookimpl

from airflow_provider.common import RUN_KEY, SHARED_KEY, over
from airflow_provider.stored import remembered

if TYPE_CHECKING:
    from airflow_provider.hooks import ConnIds

#: How many runs' ends are awaited at once, and seconds to wait for one. The cancel is already recorded in the run
#: directory, so the driver stops even if its cluster cannot be reached from here.
AT_ONCE, PATIENCE_S = 8, 600.0

logger = logging.getLogger(__name__)


@functools.cache
def _places(loop: asyncio.AbstractEventLoop) -> asyncio.Semaphore:
    return asyncio.Semaphore(AT_ONCE)


@hookimpl
def on_task_instance_failed(previous_state: Any, task_instance: Any, error: Any) -> None:
    _ended(task_instance)


@hookimpl
def on_task_instance_success(previous_state: Any, task_instance: Any) -> None:
    _ended(task_instance)


@hookimpl
def on_task_instance_skipped(previous_state: Any, task_instance: Any) -> None:
    _ended(task_instance)


@hookimpl
def on_dag_run_failed(dag_run: Any, msg: str) -> None:
    _cancel_runs_of(dag_run, dag_id=dag_run.dag_id, run_id=dag_run.run_id)
    _end_shared_clusters(dag_run)


@hookimpl
def on_dag_run_success(dag_run: Any, msg: str) -> None:
    _cancel_runs_of(dag_run, dag_id=dag_run.dag_id, run_id=dag_run.run_id)
    _end_shared_clusters(dag_run)


def _ended(ti: Any) -> None:
    # a task's own process also calls this, with a different object; it cancels its own run
    if hasattr(ti, "_sa_instance_state") and over(ti.state):
        _cancel_runs_of(ti, dag_id=ti.dag_id, run_id=ti.run_id, task_id=ti.task_id, map_index=ti.map_index)


def _cancel_runs_of(row: Any, **ids: Any) -> None:
    from sqlalchemy import event
    from sqlalchemy.orm import object_session

    session = object_session(row)
    if session is None:
        return
    tasks = [
        ({"dag_id": row.dag_id, "run_id": row.run_id, "task_id": task_id, "map_index": map_index}, run)
        for task_id, map_index, run in remembered(session, RUN_KEY, **ids)
    ]

    def cancel_them(_: Any) -> None:
        from plugin_core.engine import in_background

        # in the background: otherwise a person waits for the page, or the scheduler's loop is blocked
        for task, run in tasks:
            if isinstance(run, dict) and "uri" in run:
                in_background(_cancel(task, run["uri"], run["ray_conn_id"]))

    # only once the task's state is committed: the trigger whose attempt is cancelled reads it (`Supervisor.wanted`)
    event.listen(session, "after_commit", cancel_them, once=True)


def _end_shared_clusters(dag_run: Any) -> None:
    """Delete the clusters that the DAG run's steps shared; later, if their steps are still being cancelled."""
    from sqlalchemy.orm import object_session

    from plugin_core.engine import in_background

    if (session := object_session(dag_run)) is None:
        return
    of = SimpleNamespace(dag_id=dag_run.dag_id, run_id=dag_run.run_id)
    found = [conn_id for _, _, conn_id in remembered(session, SHARED_KEY, dag_id=of.dag_id, run_id=of.run_id)]
    for number, conn_id in enumerate(found):
        if conn_id not in found[:number]:
            in_background(_end_shared_cluster(conn_id, of))


async def _end_shared_cluster(ray_conn_id: ConnIds, of: Any) -> None:
    from airflow_provider.hooks import RayJobsHook
    from plugin_core.engine import RayTrainWorkflowsError, in_thread

    try:
        cluster = await in_thread(lambda: RayJobsHook(ray_conn_id, of=of).get_cluster())
        await cluster.end_workflow()
    except RayTrainWorkflowsError as exc:
        # its leases expire by themselves, and the next run in its namespace deletes it
        logger.warning("the shared cluster of %s, run %s was not deleted: %s", of.dag_id, of.run_id, exc.message)


def _is_over(task: dict[str, Any]) -> bool:
    """Whether a task or its DAG run is over now, or was deleted. False: the task was cleared and runs again."""
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select

    same = [getattr(TaskInstance, name) == value for name, value in task.items()]
    query = select(TaskInstance.state, DagRun.state).join(TaskInstance.dag_run).where(*same)
    with create_session() as session:
        found = session.execute(query).one_or_none()
    return found is None or over(found[0]) or found[1] in ("success", "failed")


async def _cancel(task: dict[str, Any], run_uri: str, ray_conn_id: ConnIds) -> None:
    """Cancel a task's run if it is still active, and wait until its processes are gone."""
    from airflow_provider.hooks import RayJobsHook
    from plugin_core.engine import RunDir, Threads, acancel, in_thread

    try:
        rundir, threads = RunDir.at(run_uri), Threads.of(run_uri)
        attempt = await threads(rundir.latest)
        if not attempt or await threads(rundir.end, attempt) is not None:
            return
        # after `latest`: if the task is over now, an attempt that already existed belongs to a try that is over
        if not await in_thread(lambda: _is_over(task)):
            return
        # record the cancel where the driver reads it: this holds whatever happens next
        await threads(rundir.cancel, attempt)
        async with _places(asyncio.get_running_loop()):
            of = SimpleNamespace(dag_id=task["dag_id"], run_id=task["run_id"])
            cluster = await in_thread(lambda: RayJobsHook(ray_conn_id, of=of).get_cluster())
            outcome = await asyncio.wait_for(acancel(rundir, cluster, attempt), PATIENCE_S)
        logger.info("%s: %s", run_uri, outcome)
    except TimeoutError:
        logger.warning("%s: cancel recorded, but the run had not stopped within %.0f s", run_uri, PATIENCE_S)
    except Exception:
        # the trigger or the task's process may also cancel; do not lose an error here
        logger.exception("could not cancel %s", run_uri)
