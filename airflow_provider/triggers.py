"""The trigger that follows a step's run while its task is deferred."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from airflow_provider.common import error_payload, metadata, over, task_state, writer
from airflow_provider.hooks import ConnIds, RayJobsHook
from plugin_core.engine import RayTrainWorkflowsError, RunDir, Supervisor, acancel

#: Cancellations in progress: an asyncio task without a reference may be garbage-collected before it ends.
_CANCELLING: set[asyncio.Task[None]] = set()


class RayStepTrigger(BaseTrigger):
    """Brings the run at `run_uri` to its end and fires one event with its result or error.

    `since_attempt`: attempts up to this one belong to earlier tries of the task; so do the cancels `old_cancels` (None in
    the rows of earlier versions). Airflow's database gets only names; the cluster's token is looked up where the trigger
    runs.
    """

    def __init__(self, run_uri: str, ray_conn_id: ConnIds, since_attempt: int, old_cancels: list[str] | None = None):
        super().__init__()
        self._supervisor: Supervisor | None = None
        self._is_over = False
        self.run_uri = run_uri
        self.ray_conn_id = ray_conn_id
        self.since_attempt = since_attempt
        self.old_cancels = old_cancels

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            f"{type(self).__module__}.{type(self).__qualname__}",
            {
                "run_uri": self.run_uri,
                "ray_conn_id": self.ray_conn_id,
                "since_attempt": self.since_attempt,
                "old_cancels": self.old_cancels,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        try:
            rundir = RunDir.at(self.run_uri)
            rundir.old_cancels = None if self.old_cancels is None else frozenset(self.old_cancels)
            self._supervisor = supervisor = Supervisor(
                rundir,
                await RayJobsHook(self.ray_conn_id, of=self.task_instance).aget_cluster(),
                since_attempt=self.since_attempt,
                log=writer(self.log),
                metadata=metadata(self.task_instance),
                # another triggerer continues the task's log where this one stopped
                reader=str(getattr(self.task_instance, "id", "") or ""),
                wanted=self._task_lives,
            )
            result = await supervisor.run()
        except RayTrainWorkflowsError as exc:
            event = error_payload(exc)
        else:
            event = {"status": "success", "result": result.reference().to_json()}
        self._is_over = True
        yield TriggerEvent(event)

    async def _task_lives(self) -> bool:
        try:
            return not over(await sync_to_async(task_state)(self.task_instance))
        except AirflowRuntimeError as exc:
            self.log.warning("could not read the task's state, will retry: %s", exc)
            return False

    async def cleanup(self) -> None:
        """Before Airflow 3.3, which calls `on_kill`, this is the only notice a trigger gets of its end."""
        if not hasattr(BaseTrigger, "on_kill") and not self._is_over:
            await self.on_kill()

    async def on_kill(self) -> None:
        """Cancel the run unless its task is still active. Uses a separate asyncio task: Airflow cancels this one every
        second."""
        cancelling = asyncio.create_task(self._cancel_unless_alive())
        _CANCELLING.add(cancelling)
        cancelling.add_done_callback(_CANCELLING.discard)
        await asyncio.shield(cancelling)

    async def _cancel_unless_alive(self) -> None:
        # Airflow also calls this when it moves the trigger to another triggerer (the task is still deferred), and late
        # after a clear (the task is about to run again and continues the same job)
        state = await sync_to_async(task_state)(self.task_instance)
        if not over(state):
            self.log.info("The task is %s: its Ray job continues", state)
            return
        self.log.info("The task is %s: cancelling %s", state, self.run_uri)
        cluster = await RayJobsHook(self.ray_conn_id, of=self.task_instance).aget_cluster()
        # a task cleared in the meantime may have started a later attempt, which is not this trigger's
        followed = max(self._supervisor.attempt if self._supervisor else 0, self.since_attempt + 1)
        self.log.info("%s: %s", self.run_uri, await acancel(RunDir.at(self.run_uri), cluster, followed))
