"""Rehearses a training: does it really resume? A shortened one runs straight through twice, and once with kills."""

from __future__ import annotations

import json
import random
import secrets
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from plugin_core.clusters.base import Cluster, LocalCluster
from plugin_core.errors import SpecError
from plugin_core.errors.shown import shown
from plugin_core.runs.directory import RunDir
from plugin_core.runs.rehearsal import Noted, Verdict, compare
from plugin_core.specs import StepSpec, TrainSpec
from plugin_core.supervisor.supervisor import run

#: See `driver.train.rehearsal.observe`.
VARIABLE = "RAYTRAIN_REHEARSAL"
REPORTS, KILLS, WORKERS = 6, 2, 2


def rehearse(
    spec: StepSpec,
    cluster: Cluster | None = None,
    *,
    reports: int = REPORTS,
    kills: int = KILLS,
    seed: int = 0,
    config: Mapping[str, Any] | None = None,
    storage: str | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> Verdict:
    """Compare a training that is killed and resumed with the same one without kills.

    `reports`: how many each run makes; `kills`: how many workers are killed, at moments and ranks drawn by `seed`.
    `config`: other values in `train_loop_config`, such as fewer rows. At most two workers take part. `storage`: where the
    runs are kept; None: in a folder that is deleted. `log`: gets a line before each run. Blocks. Raises SpecError, and what
    `run` raises.
    """
    if not isinstance(spec, TrainSpec):
        raise SpecError(f"kind: got {spec.kind!r}; expected 'train', as a training is rehearsed")
    if reports < 3:
        raise SpecError(f"reports: got {reports}; expected at least 3")
    if not 1 <= kills <= reports - 2:
        raise SpecError(f"kills: got {kills}; expected 1 to {reports - 2}, with {reports} reports")
    if unknown := sorted(set(config or {}) - set(spec.train_loop_config)):
        known = ", ".join(sorted(spec.train_loop_config)) or "one that it has"
        raise SpecError(f"config: got {shown(unknown[0])}, which train_loop_config does not have; expected {known}")
    where: Cluster = cluster or LocalCluster()
    if storage is None and not where.shares_this_machine:
        raise SpecError("storage: missing; expected a storage that the cluster shares with this machine")
    workers = min(spec.scaling_config.worker_range[0], WORKERS)
    draw = random.Random(seed)
    plan = {index: draw.randrange(workers) for index in sorted(draw.sample(range(2, reports), kills))}
    # under the names of an earlier rehearsal, `run` would return that one's results
    names = f"rehearsal-{secrets.token_hex(4)}"
    if storage is not None:
        log(f"the runs are kept in {storage} as {names}-…")
    with tempfile.TemporaryDirectory(prefix="raytrain-rehearsal-") as folder:

        def noted(name: str, kill: Mapping[int, int]) -> Noted:
            log(
                f"{name}: {reports} reports"
                + "".join(f", rank {rank} killed after report {at}" for at, rank in kill.items())
            )
            shortened = _shortened(spec, f"{names}-{name}", storage or folder, workers, reports, kill, config or {})
            run(shortened, where, progress=False)
            return Noted.read(RunDir.of(shortened))

        return compare(noted("straight", {}), noted("straight-again", {}), noted("killed", plan))


def _shortened(
    spec: TrainSpec,
    name: str,
    storage: str,
    workers: int,
    reports: int,
    kills: Mapping[int, int],
    config: Mapping[str, Any],
) -> TrainSpec:
    """The training with these workers, which ends after this many reports and tells nobody: no tracker, no callback."""
    plan = json.dumps({"reports": reports, "kills": {str(at): rank for at, rank in kills.items()}})
    given = spec.run_config.worker_runtime_env or {}
    variables = {**given.get("env_vars", {}), VARIABLE: plan}
    return spec.model_copy(
        update={
            "run_config": spec.run_config.model_copy(
                update={
                    "name": name,
                    "storage_path": storage,
                    "failure_config": {"max_failures": len(kills)},
                    "checkpoint_config": spec.run_config.checkpoint_config.model_copy(update={"local_tier": None}),
                    "callbacks": [],
                    "worker_runtime_env": {**given, "env_vars": variables},
                }
            ),
            "scaling_config": spec.scaling_config.model_copy(update={"num_workers": workers}),
            "train_loop_config": {**spec.train_loop_config, **config},
            "seed": spec.seed if spec.seed is not None else 0,
            "failure_policy": None,
            "tracking": [],
        }
    )
