"""Retrain: train → evaluate against the champion → promote, in one job.

Each part is a nested run with its own result, so an attempt resumes at the part that was killed. The alias is read before
each evaluation and moved only if it is unchanged; if it moved meanwhile, the model is evaluated against the new champion.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from plugin_core.driver.admission import admitted
from plugin_core.driver.run_step import run_step
from plugin_core.errors import AliasMovedError, LeaseHeldError, UserCodeError
from plugin_core.registry.api import default_registry, open_registry, promote, why_older
from plugin_core.registry.base import ModelVersion
from plugin_core.registry.training_lease import Lease
from plugin_core.runs.age import first_made
from plugin_core.runs.context import StepContext
from plugin_core.runs.dataset_fingerprint import fingerprint_of_all
from plugin_core.runs.directory import RunDir, run_name
from plugin_core.runs.journal import JournalReader, JournalWriter, iter_reports
from plugin_core.runs.pins import pin, unpin
from plugin_core.specs import EvaluateSpec, RetrainSpec, StepSpec
from plugin_core.specs.results import CheckpointRef, EvaluationResult, RetrainResult, TrainResult
from plugin_core.storage.location import Location
from plugin_core.storage.stored_files import Object, parse

if TYPE_CHECKING:
    from plugin_core.specs.results import StepResult

#: Seconds between two reads of the training's journal, whose reports are relayed to the retraining's.
RELAY_S = 1.0
#: The fields of a report that are relayed.
RELAYED = ("report", "index", "time", "metrics")

logger = logging.getLogger(__name__)


def run(context: StepContext) -> RetrainResult:
    spec = context.spec
    assert isinstance(spec, RetrainSpec)
    beside = default_registry(context.rundir.location.parent.uri)
    registry = spec.registry or beside
    lease = Lease(Location.of(beside).child(spec.model, "leases"), context.rundir.uri)
    try:
        context.set_phase("waiting for the model")
        lease.acquire(spec.limits.heartbeat_ttl_s, spec.on_overlap == "wait", _tell_wait)
    except LeaseHeldError as exc:
        if spec.on_overlap == "fail":
            raise
        return _result(context, "skipped", exc.message, open_registry(registry).get(spec.model, spec.alias))
    try:
        return _retrain(context, spec, registry)
    finally:
        lease.release()


def _retrain(context: StepContext, spec: RetrainSpec, registry: str) -> RetrainResult:
    models = open_registry(registry)
    champion = models.get(spec.model, spec.alias)
    if champion is not None and not spec.allow_older and (why := why_older(champion, first_made(context.rundir))):
        return _result(context, "kept", f"version {champion.version} stays: {why}", champion)
    plan = _plan(context, spec, champion)
    if plan["skip"]:
        reason = f"the data is that of version {champion.version if champion else 0}; skip_unchanged is set"
        return _result(context, "skipped", reason, champion)
    # only now: a run that waits for the model, or has nothing to do, holds no resources that others wait for
    with admitted(context) as context:
        return _train_and_promote(context, spec, registry, plan)


def _train_and_promote(context: StepContext, spec: RetrainSpec, registry: str, plan: dict[str, Any]) -> RetrainResult:
    models = open_registry(registry)
    trained = _train(context, spec, plan["warm_start"])
    while True:
        champion = models.get(spec.model, spec.alias)
        if champion is not None and champion.checkpoint == _judged(trained).uri:
            # by an attempt that was killed before its result; evaluated again, it would have to beat itself
            found = RunDir.at(champion.evaluation).result() if champion.evaluation else None
            evaluated = found if isinstance(found, EvaluationResult) else None
            return _promoted(context, spec, champion, trained, evaluated)
        evaluated = _evaluate(context, spec, trained, champion)
        if not evaluated.passed:
            return _result(context, "kept", evaluated.why, champion, trained, evaluated)
        context.set_phase("promoting")
        try:
            promoted = promote(
                evaluated,
                spec.model,
                spec.alias,
                registry=registry,
                dataset=plan["dataset"],
                expected=champion.version if champion else 0,
                allow_older=spec.allow_older or evaluated.compared_to is not None,  # better than it, on the same data
            )
        except AliasMovedError as exc:
            logger.warning("%s; evaluating against that one", exc.message)
            continue
        if promoted.kept:
            return _result(context, "kept", promoted.kept, promoted, trained, evaluated)
        return _promoted(context, spec, promoted, trained, evaluated)


def _promoted(
    context: StepContext,
    spec: RetrainSpec,
    version: ModelVersion,
    trained: TrainResult,
    evaluated: EvaluationResult | None,
) -> RetrainResult:
    reason = f"version {version.version} of {spec.model} is the {spec.alias}"
    return _result(context, "promoted", reason, version, trained, evaluated)


def _judged(trained: TrainResult) -> CheckpointRef:
    checkpoint = trained.best_checkpoint or trained.checkpoint
    assert checkpoint is not None
    return checkpoint


def _plan(context: StepContext, spec: RetrainSpec, champion: ModelVersion | None) -> dict[str, Any]:
    """Return the plan the first attempt recorded; later attempts follow it."""
    dataset = fingerprint_of_all(spec.train.datasets)
    same = champion is not None and dataset is not None and champion.dataset == dataset
    plan = {
        "dataset": dataset,
        "skip": spec.skip_unchanged and same,
        "warm_start": champion.checkpoint if champion is not None and spec.warm_start else None,
    }
    place = context.rundir.step.child("plan.json")
    place.create(json.dumps(plan).encode())
    return parse(Object, place.read() or b"{}", place.uri)


def _train(context: StepContext, spec: RetrainSpec, warm_start: str | None) -> TrainResult:
    train = spec.train
    if warm_start is not None:
        train = train.model_copy(update={"resume_from": CheckpointRef(uri=warm_start)})
    part = _part(context, "train", train, "train")
    if warm_start is not None:
        pin(warm_start, by=part.rundir.uri)
    with _relayed(part.rundir, context):
        result = _run(part)
    if warm_start is not None:
        unpin(warm_start, by=part.rundir.uri)
    assert isinstance(result, TrainResult)
    return result


def _evaluate(
    context: StepContext, spec: RetrainSpec, trained: TrainResult, champion: ModelVersion | None
) -> EvaluationResult:
    given = spec.evaluate.model_dump()
    if champion is None:
        given["must_beat"] = {}
    compare_to = champion.checkpoint if champion is not None and given["must_beat"] else None
    evaluate = EvaluateSpec(**given, checkpoint=_judged(trained), compare_to=compare_to)
    part = _part(context, f"evaluate-v{champion.version if champion else 0}", evaluate, "evaluate")
    result = _run(part)
    assert isinstance(result, EvaluationResult)
    return result


def _part(context: StepContext, name: str, spec: StepSpec, field: str) -> StepContext:
    """A part with the retraining's limits and trackers."""
    whole = {"limits": context.spec.limits, "tracking": context.spec.tracking}
    return context.child(part_name(context.rundir, name), spec.model_copy(update=whole), field)


def part_name(retraining: RunDir, part: str) -> str:
    """The name of a retraining's part, unique to the retraining: train loops tell by the run name whether a checkpoint is
    their own, to resume from, or a champion's, for a warm start."""
    return run_name(retraining.name, part)


def _run(part: StepContext) -> StepResult:
    if (stored := part.rundir.result()) is not None:
        return stored
    result = run_step(part)
    # before the result is stored, or the user's corrected code would find it
    if isinstance(result, TrainResult) and result.checkpoint is None:
        raise UserCodeError(
            "train: reported no checkpoint; a retraining needs one to evaluate and to promote; expected"
            " ray.train.report(metrics, checkpoint=…) in its loop"
        )
    return part.rundir.write_result(result)


@contextmanager
def _relayed(part: RunDir, context: StepContext) -> Iterator[None]:
    """While the training runs, relay its reports to the retraining's journal, each once over all attempts."""
    last = max((entry["report"] for entry in iter_reports(context.rundir)), default=0)
    reader, writer, over = JournalReader(part), JournalWriter(context.rundir, context.attempt), threading.Event()

    def relay() -> None:
        for entry in reader:
            if entry.get("report", 0) > last:
                late = entry.get("late") or entry.get("attempt", context.attempt) < context.attempt
                again = {name: value for name, value in entry.items() if name in RELAYED}
                writer.append({**again, "checkpoint": None, **({"late": True} if late else {})})

    def follow() -> None:
        ends = False
        while not ends:
            ends = over.wait(RELAY_S)  # what came until then is relayed too
            try:
                relay()
            except Exception as exc:  # noqa: BLE001 - relaying must never end a training
                logger.warning("the training's reports are not shown here: %s", exc)

    thread = threading.Thread(target=follow, daemon=True, name="relay")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=10)
        writer.close()


def _result(
    context: StepContext,
    outcome: Any,
    reason: str,
    champion: ModelVersion | None,
    trained: TrainResult | None = None,
    evaluated: EvaluationResult | None = None,
) -> RetrainResult:
    return RetrainResult(
        run=context.run,
        outcome=outcome,
        reason=reason,
        champion=champion.version if champion else 0,
        checkpoint=CheckpointRef(uri=champion.checkpoint) if champion else None,
        trained=trained.run.uri if trained else None,
        evaluated=evaluated.run.uri if evaluated else None,
        metrics=evaluated.metrics if evaluated else {},
    )


def _tell_wait(holder: str) -> None:
    logger.info("another retraining of the model is running (%s); waiting for it", holder)
