"""A run's checkpoints, and which of old runs' may go: `raytrain checkpoints`, `raytrain prune`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from plugin_core import manifest
from plugin_core.errors import StorageError
from plugin_core.journal import read_reports
from plugin_core.pins import pinned
from plugin_core.rundir import CHILDREN, RunDir
from plugin_core.storage import Location

#: The end of a checkpoint directory's name: attempt and number (see `steps.worker`).
_CHECKPOINT = re.compile(r"_a\d{3,}_\d{6,}$")


@dataclass(frozen=True)
class Entry:
    """A checkpoint of a run. `metrics` are those of its report; `state`: complete, damaged and how, or unregistered: what
    a killed attempt left half uploaded. `kept_for`: why retention leaves it."""

    name: str
    metrics: dict[str, Any] = field(default_factory=dict)
    state: str = "complete"
    kept_for: tuple[str, ...] = ()


def checkpoints(rundir: RunDir) -> list[Entry]:
    """What lies on storage, in the order of the reports."""
    reported = {entry["checkpoint"]: entry["metrics"] for entry in read_reports(rundir) if entry.get("checkpoint")}
    there = [name for name in rundir.location.names() if _CHECKPOINT.search(name)]
    order = {name: number for number, name in enumerate(reported)}
    needed = _of_the_result(rundir)
    found = []
    for name in sorted(there, key=lambda name: (order.get(name, len(order)), name)):
        place = rundir.location.child(name)
        problem = manifest.problem(place)
        state = f"damaged: {problem}" if problem else "complete" if name in reported else "unregistered"
        why = (*(["the result"] if place.uri in needed else []), *(["a pin"] if pinned(rundir, name) else []))
        found.append(Entry(name, reported.get(name, {}), state, why))
    return found


def prunable(storage: Location, older_than: timedelta, also_results: bool = False) -> Iterator[tuple[RunDir, str]]:
    """The checkpoints that may go, as run and name, of the runs that lie in `storage`.

    A run may be pruned when its result, or the end of its last attempt, was recorded longer ago than `older_than` by the
    storage's own clock, which is the time in which what was handed out may still be picked up. Never a run that may live,
    and never a checkpoint that a pin names. The checkpoints that its result names stay, unless `also_results`.
    """
    for name in storage.names():
        rundir = RunDir.at(storage.child(name).uri)
        if not rundir.exists() or (over := _over_since(rundir)) is None:
            continue
        if datetime.now(UTC) - over < older_than:
            continue
        needed = set() if also_results else _of_the_result(rundir)
        for part in _with_children(rundir):
            for checkpoint in part.location.names():
                if not _CHECKPOINT.search(checkpoint) or pinned(part, checkpoint):
                    continue
                if part.location.child(checkpoint).uri not in needed:
                    yield part, checkpoint


def prune(rundir: RunDir, checkpoint: str) -> bool:
    """Delete a checkpoint, unless it was pinned in the meantime; whether it is gone."""
    if pinned(rundir, checkpoint):
        return False
    rundir.location.child(checkpoint).delete_dir()
    return True


def _over_since(rundir: RunDir) -> datetime | None:
    """When the run was over, by the storage's clock; None where it may still live, or go on."""
    latest = rundir.latest()
    end = rundir.end(latest) if latest else None
    if rundir.result() is not None:
        return _modified(rundir.step.child("result.json"))
    if end is not None:
        return _modified(rundir.step.child(f"attempts/{latest:03}.end.json"))
    return None


def _modified(place: Location) -> datetime | None:
    try:
        found: datetime | None = place.fs.get_file_info(place.path).mtime
    except OSError as exc:
        raise StorageError(f"{place.uri} cannot be looked up: {exc}") from exc
    return found


def _of_the_result(rundir: RunDir) -> set[str]:
    """The URIs of the checkpoints that a run's result names, wherever in it."""
    result = rundir.outermost.result()
    return set(re.findall(r'"uri": "([^"]+)"', json.dumps(result.to_json()))) if result is not None else set()


def _with_children(rundir: RunDir) -> Iterator[RunDir]:
    yield rundir
    for name in rundir.location.child(CHILDREN).names():
        yield from _with_children(rundir.child(name))
