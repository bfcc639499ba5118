"""List a run's checkpoints and prune those of old runs: `raytrain checkpoints`, `raytrain prune`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from plugin_core.runs.directory import CHILDREN, RunDir
from plugin_core.runs.history import History
from plugin_core.runs.pins import pinned
from plugin_core.specs.results import StepResult
from plugin_core.storage import checkpoint_manifest
from plugin_core.storage.location import Location


@dataclass(frozen=True)
class Entry:
    """A checkpoint of a run. `metrics`: those of its report. `state`: complete, damaged (with the reason), or unregistered
    (a killed attempt's partial upload). `kept_for`: why retention keeps it."""

    name: str
    metrics: dict[str, Any] = field(default_factory=dict)
    state: str = "complete"
    kept_for: tuple[str, ...] = ()


def checkpoints(rundir: RunDir) -> list[Entry]:
    """The checkpoints on storage, in report order."""
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
    """Yield (run, checkpoint name) for the checkpoints in `storage` that may be deleted.

    A run may be pruned if its result, or the end of its last attempt, was recorded longer than `older_than` ago by the
    storage's own clock, which leaves time to pick up a result. Never prunes a run that may be alive, or a pinned
    checkpoint. Checkpoints named by any result in this storage are kept unless `also_results`.
    """
    results = {}
    for name in storage.folders():
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
    """Abort unfinished multipart uploads in runs that may be pruned (invisible but billed); returns their number."""
    rundirs = (RunDir.at(storage.child(name).uri) for name in storage.folders())
    over = (run for run in rundirs if run.exists() and _is_over(run, run.result(), older_than))
    return sum(run.location.abort_uploads() for run in over)


def prune(rundir: RunDir, checkpoint: str) -> bool:
    """Delete a checkpoint unless it was pinned meanwhile; returns whether it was deleted."""
    if pinned(rundir, checkpoint):
        return False
    rundir.location.child(checkpoint).delete_dir(last=checkpoint_manifest.FOLDER)
    return True


def _is_over(rundir: RunDir, result: StepResult | None, older_than: timedelta) -> bool:
    over = _over_since(rundir, result)
    return over is not None and datetime.now(UTC) - over >= older_than


def _over_since(rundir: RunDir, result: StepResult | None) -> datetime | None:
    """When the run ended, by the storage's clock; None if it may be alive or continue."""
    if result is not None:
        return _modified(rundir.step.child("result.json"))
    latest = rundir.latest()
    if latest and rundir.end(latest) is not None:
        return _modified(rundir.step.child(f"attempts/{latest:03}.end.json"))
    return None


def _modified(place: Location) -> datetime | None:
    found: datetime | None = place.info().mtime
    return found


def _addresses(result: StepResult | None) -> set[tuple[str, ...]]:
    """The addresses of all checkpoints named anywhere in a result."""
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
    """A checkpoint's addresses: from its URI and, for a local path, with links resolved."""
    return {_address(uri)} if "://" in uri else {_address(uri), _address(os.path.realpath(uri))}


def _address(uri: str) -> tuple[str, ...]:
    """A checkpoint's identity by names alone: run, child runs, checkpoint.

    One storage has many URIs (links, mounts, options in a different order), and this comparison decides on deletions.
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
