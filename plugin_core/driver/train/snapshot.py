"""Before an attempt: checks Ray's index of the run's checkpoints and rebuilds it if it is unreadable or wrong.

Ray Train restores only from `checkpoint_manager_snapshot.json`, and never starts again if that file is torn, empty, from
another Ray version, or lists a missing directory (ray 2.60). The journal has every registered checkpoint, and a checkpoint
is registered only once all workers have uploaded theirs. So a checkpoint that the journal or a readable snapshot names
*and* that exists on storage is complete; a directory that neither names is never restored from.

Runs keep thousands of checkpoints, and Ray restores only the newest. That one, and the best one, which the result names,
are checked by their manifests; the others only need to exist, and are checked when read (see `checkpoint_copy`).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

from plugin_core.driver.fenced_filesystem import SNAPSHOT
from plugin_core.ray_internals import snapshot
from plugin_core.runs.directory import RunDir
from plugin_core.runs.history import History
from plugin_core.runs.journal import index_of
from plugin_core.specs import CheckpointConfig
from plugin_core.storage import checkpoint_manifest
from plugin_core.storage.threads import parallel


@dataclass(frozen=True)
class RunState:
    """A run's state before an attempt: the number of `reports` so far, the `index` (from 1; see `journal_callback`) of the
    report whose checkpoint it resumes from, the journal entries `lost` in a kill, the index of each checkpoint whose
    validation has not ended, and its `checkpoints`, the newest last."""

    reports: int = 0
    index: int = 0
    lost: tuple[dict[str, Any], ...] = ()
    checkpoints: tuple[str, ...] = ()
    validating: tuple[tuple[str, int], ...] = ()


def state_before(rundir: RunDir, history: History) -> RunState:
    """Derive the state from the journal and the repaired snapshot. The journal has everything from before a checkpoint's
    registration (see `fenced_filesystem`), but may lack the registered checkpoint's own entry."""
    reports, last = history.reports, history.last_index
    index = {name: index_of(entry) for name, entry in history.checkpoints.items()}
    data = rundir.location.child(SNAPSHOT).read(at_most=None)  # Ray reads it, of any size
    listed, _ = snapshot.parse(data) if data is not None else ([], "")
    lost = []
    for number, entry in enumerate((entry for entry in listed if entry.name not in index), start=1):
        report = {"report": reports + number, "index": last + number}
        wanted = {} if entry.validation is None else {"validation": entry.validation}
        lost.append({**report, "metrics": entry.metrics, "checkpoint": entry.name, "late": True, **wanted})
        index[entry.name] = last + number
    last_name = listed[-1].name if listed else ""
    validating = tuple((entry.name, index[entry.name]) for entry in listed if entry.validation is not None)
    names = tuple(entry.name for entry in listed)
    return RunState(reports + len(lost), index.get(last_name, 0), tuple(lost), names, validating)


def repair_snapshot(rundir: RunDir, config: CheckpointConfig, history: History) -> str:
    """Repair Ray's snapshot if it is wrong; return one sentence on the problem and the repair, "" if there was none.

    `history`: the run's, with the checkpoints that exist. Raises StorageError if storage cannot be read or written.
    """
    place = rundir.location.child(SNAPSHOT)
    data = place.read(at_most=None)
    listed, problem = snapshot.parse(data) if data is not None else ([], "is missing")
    journaled = [
        snapshot.Registered(name, entry["metrics"], entry.get("validation")) for name, entry in history.checkpoints.items()
    ]
    if data is None and not journaled:
        return ""
    usable = _Usable(rundir, config, history.there)
    there = {entry.name for entry in usable(listed)}
    dropped = history.recovery.dropped
    absent = [entry.name for entry in listed if entry.name not in there and entry.name not in dropped]
    if gone := [entry.name for entry in listed if entry.name in dropped]:
        problem = f"lists {len(gone)} checkpoint(s) that a restart dropped"
    if absent:
        problem = (
            f"lists {len(absent)} absent, empty or damaged director{'y' if len(absent) == 1 else 'ies'} ({absent[-1]})"
        )
    if not problem:
        return ""
    # in the journal's order; a checkpoint only in the snapshot was registered just before a kill, so it is the newest
    known = {entry.name: entry for entry in [*journaled, *listed]}
    kept = usable(list(known.values()))
    if not kept and data is None:
        return ""
    if kept:
        place.write(snapshot.dump(kept, _by_score(kept, config)))
        done = f"was rebuilt with {len(kept)} checkpoint(s), the latest {kept[-1].name}"
    else:
        place.delete()
        done = "was removed: no complete checkpoint is left, training starts from the beginning"
    return f"{SNAPSHOT} {problem}; it {done}"


class _Usable:
    """Selects, from registered checkpoints in report order, those that a snapshot may list."""

    def __init__(self, rundir: RunDir, config: CheckpointConfig, there: frozenset[str]):
        self._run = rundir.location
        self._config = config
        self._there = there
        self._empty: dict[str, bool] = {}
        self._damaged = functools.cache(lambda name: bool(checkpoint_manifest.problem(self._run.child(name))))

    def __call__(self, entries: list[snapshot.Registered]) -> list[snapshot.Registered]:
        new = [entry.name for entry in entries if entry.name in self._there and entry.name not in self._empty]
        self._empty.update(zip(new, parallel(lambda name: not self._run.child(name).names(), new), strict=True))
        kept = [entry for entry in entries if self._empty.get(entry.name) is False]
        while kept and self._damaged(kept[-1].name):
            kept.pop()
        if self._config.checkpoint_score_attribute is not None:
            while kept and self._damaged((best := kept[_by_score(kept, self._config)[-1]]).name):
                kept.remove(best)
        return kept


def _by_score(kept: list[snapshot.Registered], config: CheckpointConfig) -> list[int]:
    """Return their indices in Ray's order: worst to best score, or as reported."""
    order = list(range(len(kept)))
    attribute = config.checkpoint_score_attribute
    if attribute is not None:
        sign = 1 if config.checkpoint_score_order == "max" else -1
        order.sort(key=lambda i: _score(snapshot.metric(kept[i].metrics, attribute), sign))
    return order


def _score(value: Any, sign: int) -> float:
    if not isinstance(value, (int, float)) or math.isnan(value):
        return -math.inf
    return sign * float(value)
