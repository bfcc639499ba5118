"""The steps: one function a kind, run inside the driver on the cluster."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plugin_core.runs.context import StepContext

if TYPE_CHECKING:
    from plugin_core.specs.results import AnyResult

#: The module that runs each kind of step, imported only where it runs.
STEPS = {
    "train": "plugin_core.driver.train.step",
    "tune": "plugin_core.driver.tune.step",
    "evaluate": "plugin_core.driver.evaluate.step",
    "batch_infer": "plugin_core.driver.batch_infer",
    "retrain": "plugin_core.driver.retrain",
}


def run_step(context: StepContext, **options: Any) -> AnyResult:
    """Run the step of this kind, tracked as its spec says. `options`: what its `run` takes beside the context."""
    from plugin_core.tracking.session import tracked, with_tracking

    kind = context.spec.kind  # type: ignore[attr-defined]
    with tracked(context) as feeds:
        if context.rundir.is_outermost:
            context.set_links(feeds.links)
        context = replace(context, worker_environment=feeds.worker_environment)
        result: AnyResult = importlib.import_module(STEPS[kind]).run(context, **options)
        return with_tracking(result, feeds)
