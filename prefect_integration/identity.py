"""The name of a step's run, out of what Prefect keeps the same when it tries again."""

from __future__ import annotations

from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.states import State

from plugin_core.errors import SpecError
from plugin_core.record import fingerprint, make_record
from plugin_core.rundir import run_name
from plugin_core.specs import StepSpec


def named(spec: StepSpec, key: str | None) -> StepSpec:
    """The spec under its own run name, or under one that is the same at every retry.

    The name is `<root flow run id>--<subflows on the way>--<key>`. Task run ids and try counts are no part of it, since a
    flow's retry makes new ones; nor is the flow run id of a subflow, since the parent's retry makes a new one. A subflow
    stands there by its name and Prefect's number of the call.

    Without a `key`, it is the kind of the step and a hash of what the spec computes: mapped tasks get a run each, two equal
    specs share one, and a changed spec or train loop begins a new one. With a `key`, the key alone decides: the
    same key with another spec is refused, so a changed step never runs beside the one it replaces.
    """
    if spec.run_config.name:
        return spec
    ids = _root_and_path()
    if ids is None:
        raise SpecError("run_config.name: missing; outside a flow run it has to be given")
    if key is None:
        record, _, _ = make_record(spec)
        key = f"{record['kind']}-{fingerprint(record)}"
    return spec.with_name(run_name(*ids, key))


def _root_and_path() -> list[str] | None:
    """The root flow run's id and the subflows from there to here, by name and number of call."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return None
    flow_run, path = context.flow_run, []
    if flow_run.parent_task_run_id is None:
        return [str(flow_run.id)]
    with get_client(sync_client=True) as client:
        while flow_run.parent_task_run_id is not None:
            call = client.read_task_run(flow_run.parent_task_run_id)
            # a subflow called from a task has a random key instead of a number
            number = f"-{call.dynamic_key}" if call.dynamic_key.isdigit() else ""
            path.insert(0, client.read_flow(flow_run.flow_id).name + number)
            if call.flow_run_id is None:
                break
            flow_run = client.read_flow_run(call.flow_run_id)
    return [str(flow_run.id), *path]


def cancel_requested() -> bool:
    """Whether the server has this flow run, or one above it, as cancelled or about to be."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return False
    flow_run_id: UUID | None = context.flow_run.id
    with get_client(sync_client=True) as client:
        while flow_run_id is not None:
            flow_run = client.read_flow_run(flow_run_id)
            if _is_cancel(flow_run.state):
                return True
            parent = flow_run.parent_task_run_id
            flow_run_id = client.read_task_run(parent).flow_run_id if parent else None
    return False


def _is_cancel(state: State | None) -> bool:
    return state is not None and (state.is_cancelling() or state.is_cancelled())
