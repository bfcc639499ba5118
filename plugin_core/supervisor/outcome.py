"""Tells how a run ended, in words, and where to look next."""

from __future__ import annotations

import logging
import shlex

from plugin_core.runs.directory import RunDir
from plugin_core.specs.results import StepResult
from plugin_core.specs.step_kinds import step_kind
from plugin_core.storage.threads import Threads
from plugin_core.supervisor.events import Event, Listener
from plugin_core.supervisor.progress import duration


async def tell_outcome(rundir: RunDir, result: StepResult, tell: Listener) -> None:
    """Two reads: the spec, and how long the attempt took."""
    threads = Threads.of(rundir.uri)
    spec, end = await threads(rundir.read_spec), await threads(rundir.end, result.run.attempt)
    for warning in result.warnings:
        tell(Event("outcome", f"warning: {warning}", level=logging.WARNING))
    attempts = f"attempt {result.run.attempt}"
    took = f"{attempts} took {duration(end.elapsed_s)}" if end is not None and end.elapsed_s else attempts
    look = f"{took}; more: `raytrain status {shlex.quote(rundir.uri)}`"
    tell(Event("outcome", "\n".join([*step_kind(spec.kind).words(spec, result), look]), result.to_json()))


def tell_failure(rundir: RunDir, outcome: str, tell: Listener) -> None:
    """Where to look after the line that said why."""
    if outcome == "cancelled":
        return
    uri = shlex.quote(rundir.uri)
    tell(Event("outcome", f"more: `raytrain status {uri}`, and `raytrain logs {uri}` while its cluster is there"))
