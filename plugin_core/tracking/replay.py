"""Log a finished run again from its run directory, to add what a tracker missed while it was unreachable."""

from __future__ import annotations

from plugin_core.errors import SpecError
from plugin_core.runs.context import StepContext
from plugin_core.runs.directory import CHILDREN, AttemptEnd, RunDir
from plugin_core.tracking.feed import final_metrics
from plugin_core.tracking.session import status_of, tracked


def replay(rundir: RunDir) -> dict[str, dict[str, str]]:
    """Bring the trackers of a run and its nested runs up to date with the run directory; return the links of each run.

    Raises SpecError if the run is still active, is not tracked, or a tracker rejects it; InfrastructureError if a tracker
    cannot be reached.
    """
    spec, result, attempt = rundir.read_spec(), rundir.result(), rundir.outermost.latest()
    if not spec.tracking:
        raise SpecError(f"tracking: none in the spec of {rundir.uri}; expected a run with trackers")
    end = rundir.outermost.end(attempt) if attempt else None
    if result is None and end is None and rundir.is_outermost:
        raise SpecError(f"run: got {rundir.uri!r}, which is still active or was lost; expected a finished run")
    context = StepContext(spec, rundir, attempt, {}, lambda phase: None)
    links = {}
    with tracked(context) as feeds:
        feeds.must_begin()
        if result is not None:
            feeds.end("finished", metrics=final_metrics(result))
        else:
            feeds.end(*_ended(rundir, attempt, end))
        feeds.must_be_whole()
        links[rundir.uri] = feeds.links
    for name in rundir.location.child(CHILDREN).names():
        child = rundir.child(name)
        if child.exists() and child.read_spec().tracking:
            links |= replay(child)
    return links


def _ended(rundir: RunDir, attempt: int, outer: AttemptEnd | None) -> tuple[str, str]:
    """How a run without a result ended, for its tracker. `outer`: how the outermost run's last attempt did."""
    ends = (rundir.end(number) for number in range(attempt, 0, -1)) if not rundir.is_outermost else ()
    end = next(filter(None, ends), outer)
    if end is not None and end.outcome == "succeeded":
        return "finished", ""  # a trial that its search stopped early
    return (status_of(end.outcome), end.message) if end is not None else (status_of(""), "")
