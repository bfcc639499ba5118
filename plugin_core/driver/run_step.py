"""Runs a step of any kind inside the driver."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plugin_core.runs.context import StepContext
from plugin_core.specs.functions import import_function
from plugin_core.specs.step_kinds import step_kind

if TYPE_CHECKING:
    from plugin_core.specs.results import StepResult


def run_step(context: StepContext, **options: Any) -> StepResult:
    """Run the step, tracked as its spec says. `options`: extra arguments of its kind's `run`."""
    from plugin_core.tracking.session import tracked, with_tracking

    run = import_function("run", step_kind(context.spec.kind).run)
    with tracked(context) as feeds:
        if context.rundir.is_outermost:
            context.set_links(feeds.links)
        context = replace(context, worker_environment=feeds.worker_environment)
        result: StepResult = run(context, **options)
        return with_tracking(result, feeds)
