"""The link from a task to its Ray job's page on the dashboard."""

from __future__ import annotations

from typing import Any

from airflow.providers.common.compat.sdk import BaseOperatorLink, XCom


class RayJobLink(BaseOperatorLink):
    """Reads what the operator pushed when it submitted, so that the link shows while the job runs."""

    name = "Ray job"

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
