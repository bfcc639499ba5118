"""Train: TrainSpec → Ray trainer → fit → TrainResult."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

from plugin_core import data
from plugin_core.fenced_fs import fenced_filesystem
from plugin_core.frameworks import TrainerInputs, build_trainer
from plugin_core.journal import JournalReader
from plugin_core.restore import repair_snapshot
from plugin_core.results import CheckpointRef, TrainResult
from plugin_core.specs import TrainSpec
from plugin_core.steps.worker import WorkerOptions, wrap
from plugin_core.storage import Location

if TYPE_CHECKING:
    from plugin_core.steps import StepContext

logger = logging.getLogger(__name__)


def run(context: StepContext) -> TrainResult:
    from plugin_core.steps.callbacks import JournalCallback
    from plugin_core.steps.guard import GuardCallback

    spec = context.spec
    assert isinstance(spec, TrainSpec)
    checkpoints = spec.run_config.checkpoint_config
    journal = JournalReader(context.rundir).read()
    if repaired := repair_snapshot(context.rundir, checkpoints, journal):
        logger.warning("%s", repaired)
    uri, attempt = context.rundir.uri, context.attempt
    warm_start = spec.resume_from.uri if spec.resume_from else None
    options = WorkerOptions(uri, attempt, warm_start, checkpoints.checkpoint_score_attribute)
    wrapped = functools.partial(wrap, options=options)
    loop = context.function("train_loop_per_worker") if spec.train_loop_per_worker else None
    callbacks = [
        JournalCallback(uri, attempt, reports_before=sum("report" in entry for entry in journal)),
        GuardCallback(uri, attempt, spec.limits.scheduling_timeout_s),
    ]
    inputs = TrainerInputs(
        train_loop=wrapped(loop) if loop else None,
        wrap=wrapped,
        train_loop_config=spec.train_loop_config,
        scaling_config=_scaling_config(spec),
        run_config=_run_config(spec, context, callbacks),
        datasets={
            name: data.load(config, functools.partial(context.function, f"datasets.{name}.function"))
            for name, config in spec.datasets.items()
        },
    )
    trainer = build_trainer(spec, inputs)
    context.set_phase("training")
    return _collect(trainer.fit(), context)


def _scaling_config(spec: TrainSpec) -> Any:
    from ray.train import ScalingConfig

    return ScalingConfig(**spec.scaling_config.model_dump(exclude_none=True))


def _run_config(spec: TrainSpec, context: StepContext, callbacks: list[Any]) -> Any:
    from ray.train import CheckpointConfig, FailureConfig, RunConfig

    ours = spec.run_config
    parent, _, name = context.rundir.location.path.rpartition("/")
    return RunConfig(
        name=name,
        storage_path=parent or "/",
        storage_filesystem=fenced_filesystem(context.rundir.uri, context.attempt),
        checkpoint_config=CheckpointConfig(**ours.checkpoint_config.model_dump(exclude_none=True)),
        failure_config=FailureConfig(**ours.failure_config.model_dump()),
        worker_runtime_env=ours.worker_runtime_env,
        callbacks=callbacks,
    )


def _collect(result: Any, context: StepContext) -> TrainResult:
    """The result from Ray's, with the metrics of the very last report, which Ray forgets when it had no checkpoint."""
    reports = [entry for entry in JournalReader(context.rundir).read() if "report" in entry]
    config = context.spec.run_config.checkpoint_config
    best = None
    if config.checkpoint_score_attribute and result.best_checkpoints:
        best = result.get_best_checkpoint(config.checkpoint_score_attribute, config.checkpoint_score_order)
    return TrainResult(
        run=context.run,
        metrics=reports[-1]["metrics"] if reports else result.metrics or {},
        checkpoint=_reference(result.checkpoint, context.rundir.location),
        best_checkpoint=_reference(best, context.rundir.location),
        reports=len(reports),
    )


def _reference(checkpoint: Any, location: Location) -> CheckpointRef | None:
    if checkpoint is None:
        return None
    return CheckpointRef(uri=location.child(checkpoint.path.rstrip("/").rpartition("/")[2]).uri)
