"""Links from a task to its Ray job on the dashboard and to its tracking run."""

from __future__ import annotations

from typing import Any

from airflow.providers.common.compat.sdk import BaseOperatorLink, XCom


class _PushedLink(BaseOperatorLink):
    """A link that the operator pushed under the link's key."""

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        return (
            XCom.get_one(
                key=self.xcom_key,
                dag_id=ti_key.dag_id,
                task_id=ti_key.task_id,
                run_id=ti_key.run_id,
                map_index=ti_key.map_index,
            )
            or ""
        )


class RayJobLink(_PushedLink):
    """Pushed at the submit, so that the link is available while the job runs."""

    name = "Ray job"


class RayTrackingLink(_PushedLink):
    """The run's page at the first tracker that has one; pushed at the end."""

    name = "Tracking"
