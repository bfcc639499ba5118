"""The format of Ray Train's `checkpoint_manager_snapshot.json`, its index of a run's checkpoints."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import ray
from ray._private.dict import flatten_dict
from ray.train.v2._internal.execution.checkpoint.checkpoint_manager import _CheckpointManagerState, _TrainingResultState
from ray.train.v2.api.validation_config import ValidationTaskConfig

from plugin_core.ray_internals.validations import wanted


@dataclass(frozen=True)
class Registered:
    """A checkpoint that Ray Train's controller has registered: its directory name, its metrics, and, until it has been
    validated, how to validate it (see `validations.wanted`)."""

    name: str
    metrics: dict[str, Any]
    validation: dict[str, Any] | None = None


def parse(data: bytes) -> tuple[list[Registered], str]:
    """The checkpoints in a snapshot, in report order, and a description of its defect ("" if valid)."""
    try:
        raw = json.loads(data)
        state = _CheckpointManagerState.model_validate(raw)
    except (ValueError, TypeError, RecursionError) as exc:
        return [], f"is truncated or not a snapshot ({str(exc).splitlines()[0][:100]})" if data else "is empty"
    results = sorted(
        zip(state.checkpoint_report_indices, state.checkpoint_results, strict=False), key=lambda pair: int(pair[0])
    )
    pending = {
        result.checkpoint_dir_name: wanted(given)
        for result, given in zip(state.pending_training_results, state.pending_validation_specs, strict=False)
    }
    entries = [
        Registered(result.checkpoint_dir_name, result.metrics, pending.get(result.checkpoint_dir_name))
        for _, result in results
    ]
    wrong = ""
    if raw.get("ray_version") != ray.__version__:
        wrong = f"was written by Ray {raw.get('ray_version')}, this is Ray {ray.__version__}"
    elif len(state.checkpoint_report_indices) != len(state.checkpoint_results):
        wrong = "is inconsistent"
    return entries, wrong


def dump(registered: list[Registered], order: list[int]) -> bytes:
    """Serialise a snapshot of these checkpoints, oldest first. `order`: their indices from worst to best."""
    states = [_TrainingResultState(checkpoint_dir_name=entry.name, metrics=entry.metrics) for entry in registered]
    pending = [i for i, entry in enumerate(registered) if entry.validation is not None]
    state = _CheckpointManagerState(
        checkpoint_results=[states[i] for i in order],
        checkpoint_report_indices=order,
        latest_checkpoint_result=states[-1],
        pending_training_results=[states[i] for i in pending],
        pending_validation_specs=[ValidationTaskConfig(**(registered[i].validation or {})) for i in pending],
        current_report_index=len(registered),
        validated_checkpoint_dir_names=[],
        timed_out_validation_checkpoint_dir_names=[],
        failed_validation_checkpoint_dir_names=[],
    )
    return str(state.model_dump_json()).encode()


def metric(metrics: dict[str, Any], path: str) -> Any:
    """A metric by its "/"-joined path, as in `checkpoint_score_attribute`; None if absent."""
    return flatten_dict(metrics).get(path)
