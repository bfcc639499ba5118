"""Tells how a run ended, in words, and where to look next."""

from __future__ import annotations

import logging
import shlex

from plugin_core.runs.directory import RunDir
from plugin_core.specs.outcomes import any_step
from plugin_core.specs.results import StepResult
from plugin_core.specs.step_kinds import step_kind
from plugin_core.storage.threads import Threads
from plugin_core.supervisor.events import Event, Listener
from plugin_core.supervisor.progress import duration, effective_time

logger = logging.getLogger(__name__)


async def tell_outcome(rundir: RunDir, result: StepResult, tell: Listener) -> None:
    """Takes two reads: the spec and the attempt's duration. Never raises: the result exists, whatever can be said."""
    threads = Threads.of(rundir.uri)
    took = f"attempt {result.run.attempt}"
    try:
        spec, end = await threads(rundir.read_spec), await threads(rundir.end, result.run.attempt)
        lines = step_kind(spec.kind).words(spec, result)  # a package's own kind has words of its own
        took += f" took {duration(end.elapsed_s)}" if end is not None and end.elapsed_s else ""
        if result.ledger and step_kind(spec.kind).reports:
            lines = [*lines, f"effective training time: {effective_time(result.ledger)}"]
    except Exception:
        logger.exception("the outcome could not be put in words")
        lines = any_step(None, result)
    for warning in result.warnings:
        tell(Event("outcome", f"warning: {warning}", level=logging.WARNING))
    look = f"{took}; more: `raytrain status {shlex.quote(rundir.uri)}`"
    if not getattr(result, "passed", True):
        # a failed gate is not an error, but the rest of the chain does not run
        tell(Event("outcome", lines.pop(0), level=logging.WARNING))
    tell(Event("outcome", "\n".join([*lines, look]), result.to_json()))


def tell_failure(rundir: RunDir, outcome: str, tell: Listener) -> None:
    """Tell where to look, after the line that said why."""
    if outcome == "cancelled":
        return
    uri = shlex.quote(rundir.uri)
    tell(Event("outcome", f"more: `raytrain status {uri}`, and `raytrain logs {uri}`"))
