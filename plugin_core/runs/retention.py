"""A run's checkpoints, and which of old runs' may go: `raytrain checkpoints`, `raytrain prune`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from plugin_core.errors import StorageError
from plugin_core.runs.directory import CHILDREN, RunDir
from plugin_core.runs.history import History
from plugin_core.runs.pins import pinned
from plugin_core.specs.results import StepResult
from plugin_core.storage import checkpoint_manifest
from plugin_core.storage.location import Location


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
    history = History.read(rundir)
    reported = {name: entry["metrics"] for name, entry in history.checkpoints.items()}
    there = [name for name in history.there if checkpoint_manifest.NAME.search(name)]
    order = {name: number for number, name in enumerate(reported)}
    needed = {address[1:] for address in _addresses(rundir.outermost.result())}
    found = []
    for name in sorted(there, key=lambda name: (order.get(name, len(order)), name)):
        place = rundir.location.child(name)
        problem = checkpoint_manifest.problem(place)
        state = f"damaged: {problem}" if problem else "complete" if name in reported else "unregistered"
        why = (
            *(["the result"] if _address(place.uri)[1:] in needed else []),
            *(["a pin"] if pinned(rundir, name) else []),
        )
        found.append(Entry(name, reported.get(name, {}), state, why))
    return found


def prunable(storage: Location, older_than: timedelta, also_results: bool = False) -> Iterator[tuple[RunDir, str]]:
    """The checkpoints that may go, as run and name, of the runs that lie in `storage`.

    A run may be pruned when its result, or the end of its last attempt, was recorded longer ago than `older_than` by the
    storage's own clock, which is the time in which what was handed out may still be picked up. Never a run that may live,
    and never a checkpoint that a pin names. The checkpoints that a result names, the run's own or another's in this
    storage, stay, unless `also_results`.
    """
    results = {}
    for name in storage.names():
        rundir = RunDir.at(storage.child(name).uri)
        if rundir.exists():
            results[rundir] = rundir.result()
    named = set() if also_results else set().union(*(_addresses(result) for result in results.values()))
    for rundir, result in results.items():
        if not _is_over(rundir, result, older_than):
            continue
        own = set() if also_results else {address[1:] for address in _addresses(result)}
        for part in _with_children(rundir):
            for checkpoint in part.location.names():
                if not checkpoint_manifest.NAME.search(checkpoint) or pinned(part, checkpoint):
                    continue
                place = part.location.child(checkpoint)
                if _address(place.uri)[1:] not in own and not named & _all_addresses(place.uri):
                    yield part, checkpoint


def abort_uploads(storage: Location, older_than: timedelta) -> int:
    """Abort what killed processes left of uploads in parts in those runs, which nobody sees and which costs; how many."""
    rundirs = (RunDir.at(storage.child(name).uri) for name in storage.names())
    over = (run for run in rundirs if run.exists() and _is_over(run, run.result(), older_than))
    return sum(run.location.abort_uploads() for run in over)


def prune(rundir: RunDir, checkpoint: str) -> bool:
    """Delete a checkpoint, unless it was pinned in the meantime; whether it is gone."""
    if pinned(rundir, checkpoint):
        return False
    rundir.location.child(checkpoint).delete_dir()
    return True


def _is_over(rundir: RunDir, result: StepResult | None, older_than: timedelta) -> bool:
    over = _over_since(rundir, result)
    return over is not None and datetime.now(UTC) - over >= older_than


def _over_since(rundir: RunDir, result: StepResult | None) -> datetime | None:
    """When the run was over, by the storage's clock; None where it may still live, or go on."""
    if result is not None:
        return _modified(rundir.step.child("result.json"))
    latest = rundir.latest()
    if latest and rundir.end(latest) is not None:
        return _modified(rundir.step.child(f"attempts/{latest:03}.end.json"))
    return None


def _modified(place: Location) -> datetime | None:
    try:
        found: datetime | None = place.fs.get_file_info(place.path).mtime
    except OSError as exc:
        raise StorageError(f"{place.uri} cannot be looked up: {exc}") from exc
    return found


def _addresses(result: StepResult | None) -> set[tuple[str, ...]]:
    """The addresses of the checkpoints that a result names, wherever in it."""
    strings = _strings(result.to_json()) if result is not None else ()
    return {
        address
        for text in strings
        if checkpoint_manifest.NAME.search(_address(text)[-1])
        for address in _all_addresses(text)
    }


def _strings(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, (dict, list)):
        for item in data.values() if isinstance(data, dict) else data:
            yield from _strings(item)


def _all_addresses(uri: str) -> set[tuple[str, ...]]:
    """The addresses that a checkpoint has: as its URI says and, on this machine, where links lead to."""
    return {_address(uri)} if "://" in uri else {_address(uri), _address(os.path.realpath(uri))}


def _address(uri: str) -> tuple[str, ...]:
    """A checkpoint's place by names alone: its run, the runs within that one, itself.

    One storage has many URIs (links, mounts, options in another order), and what is compared here decides a deletion.
    """
    path = urlsplit(uri).path if "://" in uri else uri
    parts = [part for part in path.split("/") if part]
    start = len(parts) - 2
    while start >= 2 and parts[start - 1] == CHILDREN:
        start -= 2
    return tuple(parts[max(start, 0) :]) or ("",)


def _with_children(rundir: RunDir) -> Iterator[RunDir]:
    yield rundir
    for name in rundir.location.child(CHILDREN).names():
        yield from _with_children(rundir.child(name))
