"""The checkpoint that a run stands for, if a run directory is given in place of a checkpoint."""

from __future__ import annotations

from typing import Any

from plugin_core.errors import SpecError
from plugin_core.runs.directory import RunDir
from plugin_core.runs.history import History, metric
from plugin_core.specs import TrainSpec
from plugin_core.specs.json_values import is_number
from plugin_core.specs.results import CheckpointRef, RetrainResult, TrainResult, TuneResult


def checkpoint_of(rundir: RunDir, field: str) -> tuple[CheckpointRef, str]:
    """The best checkpoint of a run if it ranks them, else its latest, or of a retraining its champion's; and which of these
    it is. Raises SpecError about `field` for a run without one."""
    result = rundir.result()
    if isinstance(result, RetrainResult):
        best, latest, which = None, result.checkpoint, "champion's"
    elif isinstance(result, (TrainResult, TuneResult)):
        trained = result.best if isinstance(result, TuneResult) else result
        best, latest, which = trained.best_checkpoint, trained.checkpoint, "latest"
    else:
        spec = rundir.read_spec()
        if result is not None or not isinstance(spec, TrainSpec):
            why = "" if result is not None else " without a result yet"
            raise SpecError(
                f"{field}: got {rundir.uri!r}, a run of kind {spec.kind!r}{why}; expected a checkpoint, or the run of a"
                " training, search or retraining"
            )
        best, latest = best_and_latest(rundir, spec, History.read(rundir))
        which = "latest"
    if best is not None:
        return best, "best"
    if latest is None:
        raise SpecError(f"{field}: got {rundir.uri!r}, a run without a checkpoint; expected one that reported one")
    return latest, which


def best_and_latest(rundir: RunDir, spec: TrainSpec, history: History) -> tuple[CheckpointRef | None, CheckpointRef | None]:
    """The best checkpoint by the spec's score, and the latest, among those that a training reported and that exist."""
    kept = list(history.checkpoints.values())
    config = spec.run_config.checkpoint_config
    best = None
    if score := config.checkpoint_score_attribute:
        scored = [entry for entry in kept if is_number(metric(entry["metrics"], score))]
        better = max if config.checkpoint_score_order == "max" else min
        best = better(scored, key=lambda entry: metric(entry["metrics"], score)) if scored else None

    def reference(entry: dict[str, Any] | None) -> CheckpointRef | None:
        return CheckpointRef(uri=rundir.location.child(entry["checkpoint"]).uri) if entry else None

    return reference(best), reference(kept[-1] if kept else None)
