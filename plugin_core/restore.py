"""Before an attempt: is Ray's index of the run's checkpoints readable and true? If not, it is made anew.

Ray Train restores from `checkpoint_manager_snapshot.json` alone and refuses to start, for good, when it is torn, empty, of
another Ray version or lists a directory that is gone (ray 2.60). The journal knows every checkpoint that was registered,
which happens only when all workers have uploaded theirs; so what the journal or a readable snapshot names *and* lies on
storage is complete, and a directory that neither of them names is never restored from.

Runs keep thousands of checkpoints, and Ray restores from the newest only. So that one, and the best, which the result
names, are checked by their manifests; of the others it is enough that they are there. Whoever reads one of those checks it
then (see `node_copy`).
"""

from __future__ import annotations

import functools
import json
import math
from dataclasses import dataclass
from typing import Any

from plugin_core import manifest
from plugin_core.fenced_fs import SNAPSHOT
from plugin_core.history import History
from plugin_core.journal import index_of
from plugin_core.rundir import RunDir
from plugin_core.specs import CheckpointConfig
from plugin_core.sync import parallel


@dataclass(frozen=True)
class _Registered:
    name: str
    metrics: dict[str, Any]


@dataclass(frozen=True)
class Standing:
    """Where a run stands before an attempt: `reports` so far, the `index` of the report (counted from 1; see
    `steps.callbacks`) from whose checkpoint it goes on, and the journal's entries that a kill has `lost`."""

    reports: int = 0
    index: int = 0
    lost: tuple[dict[str, Any], ...] = ()


def standing_of(rundir: RunDir, history: History) -> Standing:
    """Told from journal and snapshot, the latter repaired. What came before a checkpoint's registration is always in the
    journal (see `fenced_fs`), the registered checkpoint's own entry may be lost."""
    reports, last = history.reports, history.last_index
    index = {name: index_of(entry) for name, entry in history.checkpoints.items()}
    data = rundir.location.child(SNAPSHOT).read()
    listed, _ = _parse(data) if data is not None else ([], "")
    lost = []
    for number, entry in enumerate((entry for entry in listed if entry.name not in index), start=1):
        report = {"report": reports + number, "index": last + number}
        lost.append({**report, "metrics": entry.metrics, "checkpoint": entry.name})
        index[entry.name] = last + number
    return Standing(reports + len(lost), index[listed[-1].name] if listed else 0, tuple(lost))


def repair_snapshot(rundir: RunDir, config: CheckpointConfig, history: History) -> str:
    """Make Ray's snapshot true where it is not; returns one sentence on what was wrong and done, "" where nothing was.

    `history`: the run's, with the checkpoints that exist. Raises StorageError when storage cannot be read or written.
    """
    place = rundir.location.child(SNAPSHOT)
    data = place.read()
    listed, problem = _parse(data) if data is not None else ([], "is missing")
    journaled = [_Registered(name, entry["metrics"]) for name, entry in history.checkpoints.items()]
    if data is None and not journaled:
        return ""
    usable = _Usable(rundir, config, history.there)
    there = {entry.name for entry in usable(listed)}
    absent = [entry.name for entry in listed if entry.name not in there]
    if absent:
        problem = (
            f"lists {len(absent)} absent, empty or damaged director{'y' if len(absent) == 1 else 'ies'} ({absent[-1]})"
        )
    if not problem:
        return ""
    # in the journal's order; what only the snapshot knows came in the second before a kill, so it is the newest
    known = {entry.name: entry for entry in [*journaled, *listed]}
    kept = usable(list(known.values()))
    if not kept and data is None:
        return ""
    if kept:
        place.write(_snapshot(kept, config))
        done = f"was rebuilt with {len(kept)} checkpoint(s), the latest {kept[-1].name}"
    else:
        place.delete()
        done = "was removed: no complete checkpoint is left, training starts from the beginning"
    return f"{SNAPSHOT} {problem}; it {done}"


class _Usable:
    """Picks, of registered checkpoints in the order of their reports, those that a snapshot may list."""

    def __init__(self, rundir: RunDir, config: CheckpointConfig, there: frozenset[str]):
        self._run = rundir.location
        self._config = config
        self._there = there
        self._empty: dict[str, bool] = {}
        self._damaged = functools.cache(lambda name: bool(manifest.problem(self._run.child(name))))

    def __call__(self, entries: list[_Registered]) -> list[_Registered]:
        new = [entry.name for entry in entries if entry.name in self._there and entry.name not in self._empty]
        self._empty.update(zip(new, parallel(lambda name: not self._run.child(name).names(), new), strict=True))
        kept = [entry for entry in entries if self._empty.get(entry.name) is False]
        while kept and self._damaged(kept[-1].name):
            kept.pop()
        if self._config.checkpoint_score_attribute is not None:
            while kept and self._damaged((best := kept[_by_score(kept, self._config)[-1]]).name):
                kept.remove(best)
        return kept


def _parse(data: bytes) -> tuple[list[_Registered], str]:
    """The checkpoints that a snapshot lists in the order of their reports, and what is wrong with it."""
    import ray
    from ray.train.v2._internal.execution.checkpoint.checkpoint_manager import _CheckpointManagerState

    try:
        raw = json.loads(data)
        state = _CheckpointManagerState.model_validate(raw)
    except (ValueError, TypeError) as exc:
        return [], f"is torn or no snapshot ({str(exc).splitlines()[0][:100]})" if data else "is empty"
    results = sorted(
        zip(state.checkpoint_report_indices, state.checkpoint_results, strict=False), key=lambda pair: int(pair[0])
    )
    entries = [_Registered(result.checkpoint_dir_name, result.metrics) for _, result in results]
    wrong = ""
    if raw.get("ray_version") != ray.__version__:
        wrong = f"was written by Ray {raw.get('ray_version')}, this is Ray {ray.__version__}"
    elif len(state.checkpoint_report_indices) != len(state.checkpoint_results):
        wrong = "is inconsistent"
    return entries, wrong


def _snapshot(kept: list[_Registered], config: CheckpointConfig) -> bytes:
    """Ray's snapshot of these checkpoints, given oldest first."""
    from ray.train.v2._internal.execution.checkpoint.checkpoint_manager import _CheckpointManagerState, _TrainingResultState

    states = [_TrainingResultState(checkpoint_dir_name=entry.name, metrics=entry.metrics) for entry in kept]
    order = _by_score(kept, config)
    state = _CheckpointManagerState(
        checkpoint_results=[states[i] for i in order],
        checkpoint_report_indices=order,
        latest_checkpoint_result=states[-1],
        pending_training_results=[],
        pending_validation_specs=[],
        current_report_index=len(kept),
        validated_checkpoint_dir_names=[],
        timed_out_validation_checkpoint_dir_names=[],
        failed_validation_checkpoint_dir_names=[],
    )
    return str(state.model_dump_json()).encode()


def _by_score(kept: list[_Registered], config: CheckpointConfig) -> list[int]:
    """Their places in the order in which Ray keeps them: from worst to best, or as they were reported."""
    from ray._private.dict import flatten_dict

    order = list(range(len(kept)))
    attribute = config.checkpoint_score_attribute
    if attribute is not None:
        sign = 1 if config.checkpoint_score_order == "max" else -1
        order.sort(key=lambda i: _score(flatten_dict(kept[i].metrics).get(attribute), sign))
    return order


def _score(value: Any, sign: int) -> float:
    if not isinstance(value, (int, float)) or math.isnan(value):
        return -math.inf
    return sign * float(value)
