"""The trigger that follows a step's run while its task is deferred."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from airflow_provider.common import error_payload, metadata, over, task_state, teller
from airflow_provider.hooks import RayJobsHook
from plugin_core.engine import RayTrainWorkflowsError, RunDir, Supervisor, acancel

#: Cancellations under way: a task that nobody refers to may be collected before its end.
_CANCELLING: set[asyncio.Task[None]] = set()


class RayStepTrigger(BaseTrigger):
    """Brings the run at `run_uri` to its end and fires one event with its result or its error.

    `since_attempt`: attempts up to this one belong to earlier tries of the task. Only names are kept in Airflow's
    database; the cluster's token is looked up where the trigger runs.
    """

    def __init__(self, run_uri: str, ray_conn_id: str | None, since_attempt: int):
        super().__init__()
        self._supervisor: Supervisor | None = None
        self.run_uri = run_uri
        self.ray_conn_id = ray_conn_id
        self.since_attempt = since_attempt

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {"run_uri": self.run_uri, "ray_conn_id": self.ray_conn_id, "since_attempt": self.since_attempt},
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        try:
            self._supervisor = supervisor = Supervisor(
                RunDir.at(self.run_uri),
                await RayJobsHook(self.ray_conn_id).aget_cluster(),
                since_attempt=self.since_attempt,
                listener=teller(self.log),
                metadata=metadata(self.task_instance),
                # another triggerer goes on with the task's log where this one was
                reader=str(getattr(self.task_instance, "id", "") or ""),
                wanted=self._task_lives,
            )
            result = await supervisor.run()
        except RayTrainWorkflowsError as exc:
            yield TriggerEvent(error_payload(exc))
        else:
            yield TriggerEvent({"status": "success", "result": result.reference().to_json()})

    async def _task_lives(self) -> bool:
        try:
            return not over(await sync_to_async(task_state)(self.task_instance))
        except AirflowRuntimeError as exc:
            self.log.warning("The task's state could not be read, and will be again: %s", exc)
            return False

    async def on_kill(self) -> None:
        """Cancel the run, unless its task lives on; a task of its own, since Airflow cancels this one again each second."""
        cancelling = asyncio.create_task(self._cancel_unless_alive())
        _CANCELLING.add(cancelling)
        cancelling.add_done_callback(_CANCELLING.discard)
        await asyncio.shield(cancelling)

    async def _cancel_unless_alive(self) -> None:
        # Airflow also calls when it hands the trigger to another triggerer (the task is still deferred), and late after a
        # clear (the task is about to run again, and goes on with the same job)
        state = await sync_to_async(task_state)(self.task_instance)
        if not over(state):
            self.log.info("The task is %s: its Ray job goes on", state)
            return
        self.log.info("The task is %s: cancelling %s", state, self.run_uri)
        cluster = await RayJobsHook(self.ray_conn_id).aget_cluster()
        # a task that was cleared meanwhile may have begun a later attempt, which is none of this trigger's
        followed = max(self._supervisor.attempt if self._supervisor else 0, self.since_attempt + 1)
        self.log.info("%s: %s", self.run_uri, await acancel(RunDir.at(self.run_uri), cluster, followed))
