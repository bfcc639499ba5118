"""Derive the name of a step's run from what Prefect keeps the same across retries."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext, TaskRunContext

from plugin_core.engine import SpecError, StepSpec, fields_fingerprint, fingerprint, make_record, run_name, shown

SpecT = TypeVar("SpecT", bound=StepSpec)


@dataclass(frozen=True)
class Call:
    """Where in Prefect a step is called.

    `flow_runs`: from the root to the caller; empty outside a flow. `path`: the subflows in between, by name and call
    number. `executions`: the execution number of each flow run, from 1. `nested`: called from inside another task.
    """

    flow_runs: tuple[UUID, ...] = ()
    path: tuple[str, ...] = ()
    executions: tuple[int, ...] = ()
    flow_name: str = ""
    task_run_id: UUID | None = None
    task_run_name: str = ""
    nested: bool = False

    @classmethod
    def here(cls) -> Call:
        """The current call. Blocks: in a subflow it queries the server for the parent flow runs."""
        task, flow = TaskRunContext.get(), FlowRunContext.get()
        own = (task.task_run.id, task.task_run.name) if task else (None, "")
        nested = bool(task and task.task_run.task_inputs.get("__parents__"))
        if flow is None or flow.flow_run is None:
            return cls(task_run_id=own[0], task_run_name=own[1], nested=nested)
        flow_run, path = flow.flow_run, list[str]()
        ids, executions = [flow_run.id], [flow_run.run_count]
        if flow_run.parent_task_run_id is not None:
            with get_client(sync_client=True) as client:
                while flow_run.parent_task_run_id is not None:
                    call = client.read_task_run(flow_run.parent_task_run_id)
                    # a subflow called from a task has a random key instead of a number
                    number = f"-{call.dynamic_key}" if call.dynamic_key.isdigit() else ""
                    path.insert(0, client.read_flow(flow_run.flow_id).name + number)
                    if call.flow_run_id is None:
                        break
                    flow_run = client.read_flow_run(call.flow_run_id)
                    ids.insert(0, flow_run.id)
                    executions.insert(0, flow_run.run_count)
        name = flow.flow.name if flow.flow else ""
        return cls(tuple(ids), tuple(path), tuple(executions), name, own[0], own[1], nested)

    @property
    def root(self) -> str:
        """An id that stays the same across retries of tasks and flows; "" outside a flow."""
        return str(self.flow_runs[0]) if self.flow_runs else ""


def named(spec: SpecT, key: str | None, call: Call) -> SpecT:
    """Return the spec under its own run name, or under one that is the same on every retry.

    The name is `<root flow run id>--<subflows in between>--<key>`. It contains no task run ids or try counts, since a
    flow's retry creates new ones, and no subflow's flow run id, since the parent's retry creates a new one. A subflow is
    identified by its name and Prefect's call number.

    The default `key` is the kind of the step and a hash of the spec's fields (functions by name): each mapped task gets
    its own run, and equal specs share one. The functions' code is not part of it, so a flow restarted with newer code
    finds the job that is still alive. With an explicit `key`, nothing else counts: the same key with different fields
    is rejected, so a changed step never runs alongside the one it replaces.

    Raises SpecError if another step in the same flow run already has the name.
    """
    record, _, _ = make_record(spec)
    named_spec = spec.with_name(run_name_of(spec, record, key, call))
    _claim(named_spec, key, fingerprint(record), call)
    return named_spec


def run_name_of(spec: StepSpec, record: dict[str, Any], key: str | None, call: Call) -> str:
    """Return only the run name (see `named`); `record`: the spec's record."""
    if spec.run_config.name:
        return spec.run_config.name
    if not call.flow_runs:
        raise SpecError("run_config.name: missing; required outside a flow run")
    if key is not None and not (isinstance(key, str) and key.strip()):
        raise SpecError(f"key: got {shown(key)}; expected a word that names the step within its flow")
    name = key if key is not None else f"{record['kind']}-{fields_fingerprint(record)}"
    return run_name(call.root, *call.path, name)


@dataclass(frozen=True)
class _Claim:
    call: Call
    step: str


#: The run names claimed by task runs of this process. For steps in different processes the core detects a shared name if
#: their specs differ (`SpecChangedError`).
_claims: dict[tuple[str, str], _Claim] = {}
_claims_lock = threading.Lock()


def _claim(spec: StepSpec, key: str | None, step: str, call: Call) -> None:
    if not call.flow_runs:
        return
    name = spec.run_config.name or ""
    with _claims_lock:
        before = _claims.get((call.root, name))
        if before is None or before.call.executions != call.executions:  # the first, or the first of a flow's retry
            _claims[call.root, name] = _Claim(call, step)
            return
    if before.call.task_run_id == call.task_run_id is not None:
        return
    # a task called again by a retried task is the same step, and so is a job block's `trigger`
    again = before.call.nested or call.nested or call.task_run_id is None
    if before.step == step and (key is None or again):
        return
    field, given = ("key", key) if key is not None else ("run_config.name", name)
    raise SpecError(
        f"{field}: got {given!r} for the task run {call.task_run_name!r}, but it already names the step of task run"
        f" {before.call.task_run_name!r} in this flow run; expected a unique key for each, like train(spec, key='fit')"
    )
