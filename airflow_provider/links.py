"""Links from a task to its Ray job on the dashboard and to its tracking run."""

from __future__ import annotations

from typing import Any

from airflow.providers.common.compat.sdk import BaseOperatorLink


class _KnownLink(BaseOperatorLink):
    """A link that the operator knows, or does not know yet.

    Airflow asks for it at the end of each of the task's processes, a deferral included, and keeps the answer as an XCom for
    its pages. The operator is asked, not XCom: one that is absent is an error in the scheduler's log.
    """

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        pages: dict[str, str] = getattr(operator, "pages", {})  # a mapped task's that could not be rendered has none
        return pages.get(self.xcom_key, "")


class RayJobLink(_KnownLink):
    """Known from the submit on, so that the link is available while the job runs."""

    name = "Ray job"


class RayTrackingLink(_KnownLink):
    """The run's page at the first tracker that has one; known at the end."""

    name = "Tracking"
