"""When a checkpoint was made. Repeated work is as old as the first time it was done: if somebody clears an old engine
run and it trains its model again, that model is not newer."""

from __future__ import annotations

from plugin_core.runs.directory import RunDir
from plugin_core.runs.journal import JournalReader
from plugin_core.runs.names import GENERATION
from plugin_core.runs.pins import home_of
from plugin_core.specs.json_values import is_time
from plugin_core.storage.location import Location


def made_at(checkpoint: str) -> float | None:
    """When the checkpoint (a URI) was reported, or reached storage from the nodes, in seconds since the epoch; for a
    repeated run, when the first one ended. None if unknown, as for a checkpoint from outside our runs."""
    home = home_of(checkpoint)
    if home is None:
        return None
    name = Location.of(checkpoint).name
    return first_made(home.outermost) or _last(home, name)


def first_made(rundir: RunDir) -> float | None:
    """The last report's time in the run that this one repeats; None if it repeats none."""
    first = rundir
    while first.generation > 1 and _same(before := _before(first), first):
        first = before
    return _last(first) if first is not rundir else None


def _before(rundir: RunDir) -> RunDir:
    number, name = rundir.generation - 1, GENERATION.sub("", rundir.name)
    return RunDir(rundir.location.parent.child(name if number == 1 else f"{name}.g{number}"), number)


def _same(one: RunDir, other: RunDir) -> bool:
    """Whether two generations were requested by the same run of an engine. Runs that share a name by the user's choice are
    each new work."""
    asked = [rundir.request().asked.rpartition("#")[0] for rundir in (one, other)]
    return bool(asked[0]) and asked[0] == asked[1]


def _last(rundir: RunDir, checkpoint: str | None = None) -> float | None:
    """The time of the last report, or of the last one with that checkpoint. A checkpoint of a tier has an entry of its own,
    from when it reached storage; its report has no checkpoint."""
    found: float | None = None
    for entry in JournalReader(rundir):
        reports = "report" in entry or entry.get("phase") == "stored"
        if reports and is_time(entry.get("time")) and (checkpoint is None or entry.get("checkpoint") == checkpoint):
            found = entry["time"]
    return found
