"""Train: TrainSpec → Ray trainer → fit → TrainResult."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from plugin_core.driver import handed_over, masking
from plugin_core.driver.datasets import check_rows, load
from plugin_core.driver.fenced_filesystem import fenced_filesystem
from plugin_core.driver.resources import fitting
from plugin_core.driver.train import oom
from plugin_core.driver.train.data_config import data_config, resumable_datasets
from plugin_core.driver.train.frameworks.build import TrainerInputs, build_trainer, replicas_are_apart, worker_environment
from plugin_core.driver.train.oom import OomWatch
from plugin_core.driver.train.preprocessor import fitted_preprocessor
from plugin_core.driver.train.snapshot import repair_snapshot, state_before
from plugin_core.driver.train.tiers.records import tier_options
from plugin_core.driver.train.validation import validation_config
from plugin_core.driver.train.worker import WorkerOptions, wrap
from plugin_core.errors import SpecError, UserCodeError
from plugin_core.loops import artifacts
from plugin_core.loops.preprocessors import serialize
from plugin_core.runs.dataset_fingerprint import fingerprint_of_all
from plugin_core.runs.directory import RunDir
from plugin_core.runs.history import History, metric
from plugin_core.runs.ledgers import ledger_before
from plugin_core.runs.run_checkpoint import best_and_latest
from plugin_core.specs import TrainSpec, train_loop
from plugin_core.specs.failure_policy import FailurePolicy
from plugin_core.specs.json_values import is_number
from plugin_core.specs.results import CheckpointRef, RunRef, TrainResult
from plugin_core.specs.step import READING
from plugin_core.storage.location import Location

if TYPE_CHECKING:
    from plugin_core.runs.context import StepContext

#: Ray's default of 2.0 s makes every `report()` take 2 s (measured). One controller polls all workers, so the interval
#: grows with their number.
HEALTH_CHECK_S = 0.1
HEALTH_CHECK_S_PER_WORKER = 0.005
#: Seconds for a node to say whether its kernel killed a worker; the restart waits for it.
KILLS_S = 5.0
#: The label that Ray gives each node.
NODE_ID = "ray.io/node-id"

logger = logging.getLogger(__name__)


def run(context: StepContext, on_report: Callable[[dict[str, Any]], None] | None = None) -> TrainResult:
    """Train. `on_report` gets each report's journal entry, in the controller's process."""
    spec = context.spec
    assert isinstance(spec, TrainSpec)
    context.mark("importing Ray Train and the framework")
    _set_ray_defaults(spec)  # before Ray Train is imported
    from plugin_core.driver.train.guard_callback import GuardCallback
    from plugin_core.driver.train.hang_callback import HangCallback
    from plugin_core.driver.train.journal_callback import JournalCallback
    from plugin_core.driver.train.judge import Judge
    from plugin_core.driver.train.user_callbacks import users_callbacks
    from plugin_core.ray_internals.in_process import run_controller_here
    from plugin_core.ray_internals.on_node import call_on, raylet_answers
    from plugin_core.ray_internals.trainer import leave_out_helpers

    loop = _train_loop(context) if spec.train_loop_per_worker else None
    context.mark("preparing the training")
    checkpoints = spec.run_config.checkpoint_config
    history = History.read(context.rundir)
    if repaired := repair_snapshot(context.rundir, checkpoints, history):
        logger.warning("%s", repaired)
    uri, attempt = context.rundir.uri, context.attempt
    warm_start = spec.resume_from.uri if spec.resume_from else None
    options = WorkerOptions(
        uri,
        attempt,
        framework=spec.framework,
        seed=spec.seed,
        world_of=spec.framework if spec.world_check and not replicas_are_apart(spec) else None,
        warm_start=warm_start,
        continues=on_report is not None,  # a trial of a finished search that trains further has its former name
        score_attribute=checkpoints.checkpoint_score_attribute,
        artifact_bytes=spec.limits.artifact_bytes,
        deterministic=spec.deterministic,
        validates=spec.validation is not None,
        finite=_finite(spec),
        environment=context.worker_environment,
        tier=tier_options(context, len(history.recovery.dropped)),
    )
    judge = Judge(
        max_failures=spec.run_config.failure_config.max_failures,
        policy=spec.failure_policy or FailurePolicy(),
        recovery=history.recovery,
        config=spec.train_loop_config,
        there=functools.partial(_names, uri),  # a filesystem would lose some of its options on its way to an actor
        oom=OomWatch(functools.partial(call_on, function=oom.kills, timeout_s=KILLS_S)),
        answers=raylet_answers,
    )
    state = state_before(context.rundir, history)
    journal = JournalCallback(uri, attempt, state, on_report, all_ranks=spec.report_all_ranks, judge=judge)
    guard = GuardCallback(uri, attempt, spec.limits.scheduling_timeout_s, judge, watches_fence=not context.own_job)
    callbacks = [journal, guard, *users_callbacks(context, journal.warn)]
    # a controller in an actor does not hear of its workers' uploads and `progress()` calls
    if context.own_job and spec.hang_detection.action != "off":
        callbacks.insert(1, HangCallback(context.rundir, attempt, spec.hang_detection, journal.warn))
    tier = None
    if options.tier is not None:
        from plugin_core.driver.train.tiers.callback import TierCallback

        tier = TierCallback(options.tier, journal, context.rundir, attempt)
        callbacks.insert(0, tier)
    datasets = {
        name: load(config, functools.partial(context.function, f"datasets.{name}.function"))
        for name, config in spec.datasets.items()
    }
    check_rows(spec, datasets)
    dataset = fingerprint_of_all(spec.datasets)
    if spec.preprocessor is not None:
        context.set_phase("fitting the preprocessor")
        preprocessor = fitted_preprocessor(context, datasets)
        datasets = {name: preprocessor.transform(dataset) for name, dataset in datasets.items()}
        options = replace(options, preprocessor=serialize(preprocessor))
    if any(config.resumable for config in spec.datasets.values()):
        context.set_phase("reading the resumable datasets")
        datasets |= resumable_datasets(spec, datasets)
    wrapped = functools.partial(wrap, options=options)
    inputs = TrainerInputs(
        train_loop=wrapped(loop) if loop else None,
        wrap=wrapped,
        train_loop_config={**spec.train_loop_config, **history.recovery.changed},
        scaling_config=_scaling_config(spec, context.room, history.recovery.excluded),
        run_config=_run_config(spec, context, callbacks),
        datasets=datasets,
        dataset_config=data_config(context, spec),
        validation_config=validation_config(context, spec),
        framework_callbacks=[
            context.function(f"framework_callbacks.{number}") for number in range(len(spec.framework_callbacks or []))
        ],
    )
    trainer = build_trainer(spec, inputs)
    leave_out_helpers(trainer, own_job=context.own_job)
    if context.own_job:
        run_controller_here(trainer, masking.masked)
    context.set_phase("training")
    if context.rundir.is_outermost:
        journal.ledger = ledger_before(context.rundir, attempt, context.phases())
    fitted = trainer.fit()
    if tier is not None:
        tier.clean()
    return _collect(fitted, context, dataset, searching=on_report is not None)


def _train_loop(context: StepContext) -> Callable[..., Any]:
    """The user's loop. Raises SpecError if a reference names something else."""
    loop = context.function("train_loop_per_worker")
    if (why := train_loop.problem(loop)) is not None:
        raise SpecError(f"train_loop_per_worker: {why}")
    return loop


def _set_ray_defaults(spec: TrainSpec) -> None:
    workers = spec.scaling_config.worker_range[1]
    interval = max(HEALTH_CHECK_S, HEALTH_CHECK_S_PER_WORKER * workers)
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", f"{interval:g}")
    scheduling = spec.limits.scheduling_timeout_s
    if scheduling is not None:
        # seconds the controller blocks on a request for the workers' resources (Ray's default is 60 s)
        os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", f"{min(60.0, scheduling):g}")
    if (hang := spec.run_config.failure_config.nccl_hang) is not None:
        os.environ["RAY_TRAIN_ENABLE_NCCL_HANG_DETECTOR"] = "1"
        for name, value in hang.model_dump().items():
            os.environ[f"RAY_TRAIN_NCCL_RAS_{name.upper()}"] = str(value)
    # otherwise every line printed by a worker appears twice in the job's log
    os.environ.setdefault("RAY_TRAIN_ENABLE_PRINT_PATCH", "0")


def _names(uri: str) -> list[str]:
    return RunDir.at(uri).location.names()


def _finite(spec: TrainSpec) -> list[str] | None:
    """The metrics that must be finite numbers; see `WorkerOptions`."""
    rule = spec.failure_policy.nan_loss if spec.failure_policy is not None else None
    return None if rule is None else list(rule.metrics or [])


def _scaling_config(spec: TrainSpec, room: dict[str, float] | None, excluded: Sequence[str] = ()) -> Any:
    """`room`: see `StepContext`. `excluded`: ids of nodes that the workers must not use."""
    from ray.train import ScalingConfig

    given, (low, high) = spec.scaling_config.model_dump(exclude_none=True), spec.scaling_config.worker_range
    if low < high:
        reading = READING[1] if spec.datasets else {}
        given["num_workers"] = (low, fitting(room, spec.scaling_config.worker_resources(), low, high, reading))
    if excluded:
        given["label_selector"] = {**given.get("label_selector", {}), NODE_ID: f"!in({','.join(excluded)})"}
    return ScalingConfig(**given)


def _run_config(spec: TrainSpec, context: StepContext, callbacks: list[Any]) -> Any:
    from ray.train import CheckpointConfig, FailureConfig, RunConfig

    ours = spec.run_config
    parent, _, name = context.rundir.location.path.rpartition("/")
    return RunConfig(
        name=name,
        storage_path=parent or "/",
        storage_filesystem=fenced_filesystem(context.rundir.uri, context.attempt),
        checkpoint_config=CheckpointConfig(**ours.checkpoint_config.model_dump(exclude_none=True, exclude={"local_tier"})),
        failure_config=FailureConfig(**_failure_config(spec)),
        worker_runtime_env=_worker_runtime_env(spec),
        callbacks=callbacks,
    )


def _failure_config(spec: TrainSpec) -> dict[str, Any]:
    """With a policy, `Judge` counts the failures instead of Ray."""
    from ray.train import FailureConfig

    # an older Ray lacks some, and `check_ray` refuses anything but their defaults
    known = {field.name for field in dataclasses.fields(FailureConfig)}
    given = spec.run_config.failure_config.model_dump(include=known)
    if spec.failure_policy is not None:
        given["max_failures"] = -1
        if spec.failure_policy.preempted is not None:
            given["max_preemption_failures"] = -1
    return given


def _worker_runtime_env(spec: TrainSpec) -> dict[str, Any] | None:
    """The spec's runtime_env, merged over the variables that its framework needs."""
    given = spec.run_config.worker_runtime_env or {}
    variables = handed_over.worker_variables({**worker_environment(spec), **given.get("env_vars", {})})
    return {**given, "env_vars": variables} if variables else given or None


def result_so_far(rundir: RunDir, spec: TrainSpec, attempt: int = 1) -> TrainResult:
    """Build the result of a training that was ended early from its journal: the last report, and the latest and best of
    the checkpoints that still exist."""
    history = History.read(rundir, spec.run_config.checkpoint_config.checkpoint_score_attribute)
    best, latest = best_and_latest(rundir, spec, history)
    return TrainResult(
        run=RunRef(uri=rundir.uri, name=rundir.name, attempt=attempt),
        metrics=history.metrics,
        checkpoint=latest,
        best_checkpoint=best,
        best_score=_best_score(history, best),
        reports=history.reports,
    )


def _collect(result: Any, context: StepContext, dataset: str | None, searching: bool = False) -> TrainResult:
    """Convert Ray's result; adds the metrics of the very last report, which Ray drops if it had no checkpoint.
    `searching`: a search decides what to make of a training without reports."""
    config = context.spec.run_config.checkpoint_config
    history = History.read(context.rundir, config.checkpoint_score_attribute)
    if config.checkpoint_score_attribute and not (history.reports or searching):
        raise UserCodeError(
            f"run_config.checkpoint_config.checkpoint_score_attribute: got {config.checkpoint_score_attribute!r}, but the"
            f" training reported nothing; expected ray.train.report(metrics, checkpoint=…) in its loop"
        )
    warnings = _warnings(history)
    for warning in warnings:
        logger.warning("%s", warning)
    place, best = context.rundir.location, None
    if config.checkpoint_score_attribute and result.best_checkpoints:
        best = _reference(
            result.get_best_checkpoint(config.checkpoint_score_attribute, config.checkpoint_score_order), place
        )
    return TrainResult(
        run=context.run,
        metrics=history.metrics if history.reports else result.metrics or {},
        checkpoint=_reference(result.checkpoint, place),
        best_checkpoint=best,
        best_score=_best_score(history, best),
        reports=history.reports,
        dataset=dataset,
        artifacts=kept.uri if (kept := place.child(artifacts.FOLDER)).names() else None,
        warnings=warnings,
    )


def _warnings(history: History) -> list[str]:
    if not history.reports:
        return [
            "the training reported nothing, so it has no metrics and no checkpoint; expected"
            " ray.train.report(metrics, checkpoint=…) in its loop"
        ]
    return [*_score_warnings(history), *history.warnings]


def _best_score(history: History, best: CheckpointRef | None) -> float | None:
    """The score of the best checkpoint, as it was reported; None if there is no finite one."""
    if best is None or history.score is None:
        return None
    entry = history.checkpoints.get(best.uri.rstrip("/").rpartition("/")[2])
    value: Any = metric(entry["metrics"], history.score) if entry else None
    return float(value) if is_number(value) and math.isfinite(value) else None


def _score_warnings(history: History) -> list[str]:
    """Warnings about checkpoint ranking: Ray silently ranks checkpoints without a score last."""
    score, unranked, checkpointed = history.score, history.unranked, history.checkpointed
    if not unranked:
        return []
    field = "run_config.checkpoint_config.checkpoint_score_attribute"
    if unranked < checkpointed:
        return [f"{field}: {unranked} of {checkpointed} checkpoints have no numeric {score!r} and rank last"]
    names = ", ".join(sorted(history.names)) or "none"
    return [f"{field}: got {score!r}, which no checkpoint's report has; expected one of {names}"]


def _reference(checkpoint: Any, location: Location) -> CheckpointRef | None:
    if checkpoint is None:
        return None
    return CheckpointRef(uri=location.child(checkpoint.path.rstrip("/").rpartition("/")[2]).uri)
