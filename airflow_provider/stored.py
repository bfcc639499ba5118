"""What a task stores for Airflow's servers, so that they can cancel its run without the task: in the task state store
or, before Airflow 3.3 introduced that, in an XCom of the task."""

from __future__ import annotations

import functools
import json
from importlib.metadata import version
from typing import Any

from packaging.version import Version


@functools.cache
def has_store() -> bool:
    return Version(version("apache-airflow-core")).release >= (3, 3)


def remember(context: Any, key: str, value: Any) -> None:
    """Store a JSON value of this task."""
    if (store := context.get("task_state_store")) is not None:
        store.set(key, value)
    elif not has_store():
        context["ti"].xcom_push(key=key, value=value)


def forget(context: Any, key: str) -> None:
    if (store := context.get("task_state_store")) is not None:
        store.delete(key)
    elif not has_store():
        context["ti"].xcom_push(key=key, value=None)


def remembered(session: Any, key: str, **ids: Any) -> list[tuple[str, int, Any]]:
    """For use in Airflow's servers: (task id, map index, value) of the tasks with these ids."""
    from sqlalchemy import select

    if has_store():
        from airflow.models.task_state_store import TaskStateStoreModel as Stored

        def read(row: Any) -> Any:
            return json.loads(row.value)
    else:
        from airflow.models.xcom import XComModel as Stored

        read = Stored.deserialize_value
    rows = session.execute(select(Stored.task_id, Stored.map_index, Stored.value).filter_by(key=key, **ids))
    return [(row.task_id, row.map_index, read(row)) for row in rows]
