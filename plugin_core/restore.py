"""Before an attempt: is Ray's index of the run's checkpoints readable and true? If not, it is made anew.

Ray Train restores from `checkpoint_manager_snapshot.json` alone and refuses to start, for good, when it is torn, empty, of
another Ray version or lists a directory that is gone (ray 2.60). The journal knows every checkpoint that was registered,
which happens only when all workers have uploaded theirs; so what the journal or a readable snapshot names *and* lies on
storage is complete, and a directory that neither of them names is never restored from.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from plugin_core import manifest
from plugin_core.fenced_fs import SNAPSHOT
from plugin_core.journal import index_of
from plugin_core.rundir import RunDir
from plugin_core.specs import CheckpointConfig


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


def standing_of(rundir: RunDir, journal: list[dict[str, Any]]) -> Standing:
    """Told from journal and snapshot, the latter repaired. What came before a checkpoint's registration is always in the
    journal (see `fenced_fs`), the registered checkpoint's own entry may be lost."""
    reports = [entry for entry in journal if "report" in entry]
    last = index_of(reports[-1]) if reports else 0
    index = {entry["checkpoint"]: index_of(entry) for entry in reports if entry.get("checkpoint")}
    data = rundir.location.child(SNAPSHOT).read()
    listed, _ = _parse(data) if data is not None else ([], "")
    lost = []
    for number, entry in enumerate((entry for entry in listed if entry.name not in index), start=1):
        report = {"report": len(reports) + number, "index": last + number}
        lost.append({**report, "metrics": entry.metrics, "checkpoint": entry.name})
        index[entry.name] = last + number
    return Standing(len(reports) + len(lost), index[listed[-1].name] if listed else 0, tuple(lost))


def repair_snapshot(rundir: RunDir, config: CheckpointConfig, journal: list[dict[str, Any]]) -> str:
    """Make Ray's snapshot true where it is not; returns one sentence on what was wrong and done, "" where nothing was.

    `journal`: the run's entries so far. Raises StorageError when storage cannot be read or written.
    """
    place = rundir.location.child(SNAPSHOT)
    data = place.read()
    listed, problem = _parse(data) if data is not None else ([], "is missing")
    journaled = [_Registered(entry["checkpoint"], entry["metrics"]) for entry in journal if entry.get("checkpoint")]
    if data is None and not journaled:
        return ""
    names = set(rundir.location.names())

    def complete(name: str) -> bool:
        place = rundir.location.child(name)
        return name in names and bool(place.names()) and not manifest.problem(place)

    absent = [entry.name for entry in listed if not complete(entry.name)]
    if absent:
        problem = (
            f"lists {len(absent)} absent, empty or damaged director{'y' if len(absent) == 1 else 'ies'} ({absent[-1]})"
        )
    if not problem:
        return ""
    # in the journal's order; what only the snapshot knows came in the second before a kill, so it is the newest
    known = {entry.name: entry for entry in [*journaled, *listed]}
    kept = [entry for entry in known.values() if complete(entry.name)]
    if not kept and data is None:
        return ""
    if kept:
        place.write(_snapshot(kept, config))
        done = f"was rebuilt with {len(kept)} checkpoint(s), the latest {kept[-1].name}"
    else:
        place.delete()
        done = "was removed: no complete checkpoint is left, training starts from the beginning"
    return f"{SNAPSHOT} {problem}; it {done}"


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
    from ray._private.dict import flatten_dict
    from ray.train.v2._internal.execution.checkpoint.checkpoint_manager import _CheckpointManagerState, _TrainingResultState

    states = [_TrainingResultState(checkpoint_dir_name=entry.name, metrics=entry.metrics) for entry in kept]
    order = list(range(len(kept)))
    attribute = config.checkpoint_score_attribute
    if attribute is not None:
        # Ray keeps its list from worst to best
        sign = 1 if config.checkpoint_score_order == "max" else -1
        order.sort(key=lambda i: _score(flatten_dict(kept[i].metrics).get(attribute), sign))
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


def _score(value: Any, sign: int) -> float:
    if not isinstance(value, (int, float)) or math.isnan(value):
        return -math.inf
    return sign * float(value)
