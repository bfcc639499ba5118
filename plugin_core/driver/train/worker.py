"""Wraps the user's train loop in every worker process."""

from __future__ import annotations

import functools
import inspect
import os
import shutil
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from plugin_core.driver import log_keeper
from plugin_core.driver.train import oom
from plugin_core.driver.train.finite import check_finite
from plugin_core.driver.train.frameworks import report_callbacks, world
from plugin_core.driver.train.frameworks.seeds import set_seed
from plugin_core.driver.train.rehearsal.observe import rehearsal
from plugin_core.driver.train.tiers.records import TierOptions
from plugin_core.errors import SpecError
from plugin_core.errors.classify import TRACEBACK
from plugin_core.errors.shown import shown
from plugin_core.loops.artifacts import Artifacts
from plugin_core.loops.preprocessors import KEY as PREPROCESSOR
from plugin_core.runs.directory import RunDir
from plugin_core.specs.functions import call_with
from plugin_core.specs.json_values import json_safe
from plugin_core.specs.train_loop import FITS, RUNS_NOTHING
from plugin_core.storage import checkpoint_manifest

if TYPE_CHECKING:
    from plugin_core.driver.train.tiers.keeper import Keeper

#: Seconds after which a checkpoint's upload is worth a line in the log.
SLOW_UPLOAD_S = 5.0
_OWN_FILES = (__file__, call_with.__code__.co_filename)


@dataclass(frozen=True)
class WorkerOptions:
    """What a worker needs to know about its run. `warm_start`: URI of another run's checkpoint; `continues`: if
    that run has this one's name, the training goes on where it ended; `score_attribute`: the metric that Ray ranks
    checkpoints by; `world_of`: the framework whose workers must form one world; `preprocessor`: stored with each checkpoint
    of rank 0; `artifact_bytes`: limit on a worker's stored files, in bytes; `deterministic`:
    only deterministic algorithms; `validates`: reports may ask for a validation; `finite`: the metrics that must be finite
    numbers, [] for every loss, None for none; `environment`: variables for rank 0 and for the others; `tier`: where
    checkpoints are kept besides storage."""

    run_uri: str
    attempt: int
    framework: str
    seed: int | None = None
    world_of: str | None = None
    warm_start: str | None = None
    continues: bool = False
    score_attribute: str | None = None
    preprocessor: str | None = None
    artifact_bytes: int = 0
    deterministic: bool = False
    validates: bool = True
    finite: list[str] | None = None
    environment: tuple[dict[str, str], dict[str, str]] = ({}, {})
    tier: TierOptions | None = None


def wrap(loop: Callable[..., Any], *, options: WorkerOptions) -> Callable[[dict[str, Any]], Any]:
    """Wrap the loop for Ray: reports are made JSON-safe, checkpoint names never repeat, `warm_start` is the first
    checkpoint, `report()` (Ray Train's or Ray Tune's) returns only once the run would resume from its checkpoint, and the
    first report fails if this worker trains alone."""

    def train_loop_per_worker(config: dict[str, Any]) -> Any:
        from plugin_core.ray_internals.worker import Done

        check_world = _WorldCheck(options.world_of)
        artifacts, log, keeper = _install(options, check_world)
        report_callbacks.prepare(options.framework)
        if options.seed is not None:
            set_seed(options.framework, options.seed, deterministic=options.deterministic)
        returned = None
        try:
            with suppress(Done):
                returned = call_with(loop, config)
                if inspect.isgenerator(returned) or inspect.iscoroutine(returned):
                    returned.close()
                    raise SpecError(f"train_loop_per_worker: {RUNS_NOTHING}")
                check_world()
            if keeper is not None:
                keeper.end()
            return returned
        except Exception as exc:
            # Ray passes the exception on without its traceback
            setattr(exc, TRACEBACK, _users_traceback(exc))
            raise
        finally:
            try:
                artifacts.end()
            finally:
                log.close()

    return train_loop_per_worker


def _users_traceback(exc: Exception) -> str:
    """The traceback without this package's frames around the user's loop."""
    found = exc.__traceback__
    while found is not None and found.tb_next is not None and found.tb_frame.f_code.co_filename in _OWN_FILES:
        found = found.tb_next
    return "".join(traceback.format_exception(type(exc), exc, found))


class _WorldCheck:
    """Checks the world once: it exists by the first report, or never."""

    def __init__(self, framework: str | None):
        self._framework = framework
        if framework is not None:
            world.watch(framework)

    def __call__(self) -> None:
        if self._framework is not None:
            import ray.train

            world.check(self._framework, ray.train.get_context().get_world_size())
            self._framework = None


def _install(
    options: WorkerOptions, check_world: Callable[[], None]
) -> tuple[Artifacts, log_keeper.LogKeeper, Keeper | None]:
    from ray.train import CheckpointUploadMode

    from plugin_core.driver.train.own_checkpoint import WarmStart, own
    from plugin_core.ray_internals import worker
    from plugin_core.ray_internals.polled_worker import began_with, uploading, wait_until_registered, was_blocked
    from plugin_core.storage.checkpoint_copy import NodeCheckpoint

    context = worker.worker_context()
    began_with(context, oom.kills())
    os.environ.update(options.environment[0 if context.get_world_rank() == 0 else 1])
    artifacts = Artifacts(options.run_uri, options.attempt, context.get_world_rank(), options.artifact_bytes)
    artifacts.begin()
    rehearses = rehearsal(options.run_uri, context.get_world_rank())
    upload_here = _upload if context.get_world_rank() == 0 else checkpoint_manifest.upload

    def upload(checkpoint: Any, name: str, by: Callable[[Any, str], Any] = upload_here) -> Any:
        with uploading(context):
            return by(checkpoint, name)

    keeper = None
    if options.tier is not None:
        from plugin_core.driver.train.tiers.keeper import Keeper

        keeper = Keeper(options.tier, context, upload)
    # numbers of partial uploads left by a killed worker group of this attempt are not reused
    if keeper is not None:
        taken = keeper.plan.number
    elif context.get_world_rank() == 0:
        taken = checkpoint_manifest.highest_number(RunDir.at(options.run_uri).location.names(), options.attempt)
    else:
        taken = 0
    skip = max(0, taken - context.report_call_index)

    class SafeTrainFnUtils(worker.DistributedTrainFnUtils):
        """Ray's hook for replacing `ray.train.report` and `get_checkpoint` in a worker."""

        def report(
            self,
            metrics: dict[str, Any],
            checkpoint: Any = None,
            checkpoint_dir_name: str | None = None,
            checkpoint_upload_mode: Any = CheckpointUploadMode.SYNC,
            **kwargs: Any,
        ) -> None:
            if not isinstance(metrics, Mapping):
                raise SpecError(f"metrics: got {shown(metrics)}; expected a dict, as in ray.train.report({{'loss': 0.5}})")
            if kwargs.get("validation") and not options.validates:
                raise SpecError(
                    "validation: missing from the spec, but the train loop calls ray.train.report(…, validation=…);"
                    " expected the function that validates a checkpoint"
                )
            check_world()
            if options.finite is not None:
                check_finite(metrics, options.finite)
            began = time.monotonic()
            # a replayed epoch must not reuse the directory of its first run, which top-K may delete later; rank 0 names
            # the directory for all ranks
            number = worker.worker_context().report_call_index + 1 + skip
            name = f"{checkpoint_dir_name or 'checkpoint'}_a{options.attempt:03}_{number:06}"
            if checkpoint is not None and options.preprocessor is not None and context.get_world_rank() == 0:
                checkpoint.update_metadata({PREPROCESSOR: options.preprocessor})
            if checkpoint is not None and checkpoint_upload_mode is not CheckpointUploadMode.NO_UPLOAD:
                # `ray.train.report` passes None where its caller gave none
                users = kwargs.get("checkpoint_upload_fn")
                kwargs["checkpoint_upload_fn"] = functools.partial(upload, by=users) if users is not None else upload
            if rehearses is not None and checkpoint is not None:
                rehearses.reports(name)
            to_ray = checkpoint
            if (
                keeper is not None
                and checkpoint is not None
                and checkpoint_upload_mode is not CheckpointUploadMode.NO_UPLOAD
            ):
                keeper.keep(checkpoint, context.report_call_index + 1, name, kwargs.pop("checkpoint_upload_fn"))
                if kwargs.pop("delete_local_checkpoint_after_upload", False):
                    shutil.rmtree(checkpoint.path, ignore_errors=True)
                to_ray, checkpoint_upload_mode = None, CheckpointUploadMode.SYNC
            super().report(_safe_metrics(metrics, options.score_attribute), to_ray, name, checkpoint_upload_mode, **kwargs)
            if checkpoint is not None:
                artifacts.keep()
            if checkpoint is not None and checkpoint_upload_mode is not CheckpointUploadMode.ASYNC:
                # Ray's report returns before the controller has registered the checkpoint, and a kill in between would
                # cost a second interval
                wait_until_registered(context)
            if checkpoint is not None:
                was_blocked(context, time.monotonic() - began)
            if rehearses is not None:
                # it may end this worker now, and another rank may not have brought the checkpoint to storage yet
                wait_until_registered(context)
                if rehearses.reported(metrics, name if checkpoint is not None else ""):
                    raise worker.Done

        def get_checkpoint(self) -> Any:
            if rehearses is not None:
                rehearses.asked_for_checkpoint = True
            newest = super().get_checkpoint()
            if keeper is not None and (resumes := keeper.resumes) is not None:
                return resumes
            if newest is not None:
                return own(newest, options.run_uri)
            if options.warm_start is None:
                return None
            return NodeCheckpoint(options.warm_start) if options.continues else WarmStart(options.warm_start)

        def get_all_reported_checkpoints(self, *args: Any, **kwargs: Any) -> list[Any]:
            found = [
                replace(one, checkpoint=own(one.checkpoint, options.run_uri))
                for one in super().get_all_reported_checkpoints(*args, **kwargs)
            ]
            return [*found, *keeper.reported()] if keeper is not None else found

    utils = SafeTrainFnUtils()
    if rehearses is not None:
        rehearses.begin(worker.DistributedTrainFnUtils.get_checkpoint(utils))
    worker.install(utils)
    worker.forbid_fit(_refuse_fit)
    log = log_keeper.of_worker(options.run_uri, options.attempt, context.get_world_rank())
    return artifacts, log, keeper


def _upload(checkpoint: Any, name: str) -> Any:
    """`checkpoint_manifest.upload`; if it takes a while, the job's log says so, and says when it is done."""
    size = sum(file.stat().st_size for file in Path(checkpoint.path).rglob("*") if file.is_file())
    telling = threading.Timer(SLOW_UPLOAD_S, print, [f"uploading {name}, {size / 1e6:.1f} MB"], {"flush": True})
    telling.daemon = True
    telling.start()
    began = time.monotonic()
    try:
        kept = checkpoint_manifest.upload(checkpoint, name)
    finally:
        telling.cancel()
    if (took := time.monotonic() - began) >= SLOW_UPLOAD_S:
        print(f"uploaded {name} in {took:.0f} s", flush=True)
    return kept


def _refuse_fit() -> NoReturn:
    raise SpecError(f"train_loop_per_worker: got a function {FITS}")


def _safe_metrics(metrics: dict[str, Any], score_attribute: str | None) -> dict[str, Any]:
    """Make metrics JSON-safe. Ray ranks a checkpoint without a score last, but fails on a null score, which NaN becomes."""
    return without_null(json_safe(metrics), score_attribute)


def without_null(metrics: dict[str, Any], score_attribute: str | None) -> dict[str, Any]:
    """Metrics without the score if it is null."""
    return metrics if score_attribute is None else _without_null(metrics, score_attribute.split("/"))


def _without_null(metrics: dict[str, Any], path: list[str]) -> dict[str, Any]:
    if path[0] not in metrics:
        return metrics
    inner = metrics[path[0]]
    if len(path) > 1 and isinstance(inner, dict):
        return {**metrics, path[0]: _without_null(inner, path[1:])}
    return {key: value for key, value in metrics.items() if key != path[0] or value is not None}
