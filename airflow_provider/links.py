"""Links from a task to its Ray job on the dashboard and to its tracking run."""

from __future__ import annotations

from typing import Any

from airflow.providers.common.compat.sdk import BaseOperatorLink


class _KnownLink(BaseOperatorLink):
    """A link that the operator knows, or will know later.

    Airflow asks for it at the end of each of the task's processes, including a deferral, and keeps the answer as an
    XCom for its UI. It asks the operator, not XCom, because a missing XCom is an error in the scheduler's log.
    """

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        pages: dict[str, str] = getattr(operator, "pages", {})  # none if a mapped task could not be rendered
        return pages.get(self.xcom_key, "")


class RayJobLink(_KnownLink):
    """Known as soon as the job is submitted, so that the link is available while it runs."""

    name = "Ray job"


class RayTrackingLink(_KnownLink):
    """The run's page at the first tracker that has one; known at the end."""

    name = "Tracking"
