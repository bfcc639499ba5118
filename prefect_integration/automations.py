"""Automatic recovery: Prefect automations that restart a flow run whose process or runner is gone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import cast

from prefect.automations import Automation
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

from plugin_core.engine import SpecError

#: Prefect sends a flow run's heartbeat at most every 30 s (MINIMUM_HEARTBEAT_INTERVAL in its flow_engine.py); three missing
#: ones count as dead.
MISSING_HEARTBEAT_S = 90.0
_SILENT, _CRASHED = "silent flow runs have crashed", "crashed flow runs go on"


def create_recovery_automations(
    deployments: Sequence[str] = (),
    *,
    max_runs: int = 5,
    missing_heartbeat_s: float = MISSING_HEARTBEAT_S,
    name: str = "ray-train-workflows",
) -> list[Automation]:
    """Create or update two automations named `<name>: …`, and return them.

    The first marks a flow run Crashed if it sends no heartbeat for `missing_heartbeat_s`; the second reschedules a crashed
    flow run until it has run `max_runs` times. The flow run stays the same, so its steps attach to jobs that are still
    alive. `deployments`: "flow/deployment" names; empty: all.

    The flow's process must send heartbeats: set PREFECT_FLOWS_HEARTBEAT_FREQUENCY=30 where it runs. Raises SpecError for
    an unknown deployment and for numbers out of range.
    """
    if max_runs < 1:
        raise SpecError(f"max_runs: got {max_runs}; expected a whole number ≥ 1")
    if missing_heartbeat_s < 60:
        raise SpecError(f"missing_heartbeat_s: got {missing_heartbeat_s:g}; expected ≥ 60 (Prefect sends one every 30 s)")
    with get_client(sync_client=True) as client:
        ids = [_deployment(client, deployment) for deployment in deployments]
    related = {"prefect.resource.role": "deployment", "prefect.resource.id": ids or "prefect.deployment.*"}
    silent = AutomationCore(
        name=f"{name}: {_SILENT}",
        description=f"Marks a deployment's flow run Crashed after {missing_heartbeat_s:g} s without a heartbeat.",
        trigger=EventTrigger(
            after={"prefect.flow-run.heartbeat"},
            expect={"prefect.flow-run.*"},
            match={"prefect.resource.id": "prefect.flow-run.*"},
            match_related=related,
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=missing_heartbeat_s),
        ),
        actions=[ChangeFlowRunState(state=StateType.CRASHED, name="Crashed", message="no heartbeat from its process")],
    )
    crashed = AutomationCore(
        name=f"{name}: {_CRASHED}",
        description=f"Reschedules a deployment's crashed flow run until it has run {max_runs} times.",
        trigger=EventTrigger(
            expect={"prefect.flow-run.Crashed"},
            # the limit: the event is labelled with the number of runs started
            match={"prefect.resource.id": "prefect.flow-run.*", "prefect.run-count": [str(n) for n in range(max_runs)]},
            match_related=related,
            for_each={"prefect.resource.id"},
            posture=Posture.Reactive,
            threshold=1,
        ),
        actions=[
            ChangeFlowRunState(state=StateType.SCHEDULED, name="AwaitingRetry", message="restarting", force=True),
        ],
    )
    return [_kept(automation) for automation in (silent, crashed)]


def _deployment(client: object, name: str) -> str:
    from prefect.exceptions import ObjectNotFound

    try:
        return f"prefect.deployment.{client.read_deployment_by_name(name).id}"  # type: ignore[attr-defined]
    except (ObjectNotFound, ValueError) as exc:
        raise SpecError(f"deployments: got {name!r}, which does not exist; expected names like 'flow/deployment'") from exc


def _kept(wanted: AutomationCore) -> Automation:
    with get_client(sync_client=True) as client:
        there = client.read_automations_by_name(wanted.name)
    if not there:
        return cast(Automation, Automation(**wanted.model_dump()).create())  # synchronous here
    automation = Automation(id=there[0].id, **wanted.model_dump())
    automation.update()
    return automation
