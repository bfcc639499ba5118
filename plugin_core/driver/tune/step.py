"""Tune: Ray Tune over trials that are Ray Train runs → TuneResult.

Ray Tune's state is kept in `tune/` of the run directory, through the fenced filesystem; each trial's results in its own
run (`_children/`). An attempt restores both: finished trials are not run again, and a trial that was running resumes from
its last checkpoint.
"""

from __future__ import annotations

import json
import logging
import os
import time
from typing import TYPE_CHECKING, Any

from plugin_core.driver.admission import AUTOSCALING
from plugin_core.driver.fenced_filesystem import EXPERIMENT, fenced_filesystem
from plugin_core.driver.train.step import result_so_far
from plugin_core.driver.tune.algorithms import make_scheduler, make_searcher
from plugin_core.errors import RayTrainWorkflowsError, SpecError, from_outcome
from plugin_core.errors.classify import classify
from plugin_core.runs import code
from plugin_core.runs.directory import CHILDREN
from plugin_core.runs.journal import JournalWriter
from plugin_core.specs import TuneSpec, search_space
from plugin_core.specs.json_values import json_safe
from plugin_core.specs.results import TrainResult, TuneResult
from plugin_core.specs.step import in_sum

if TYPE_CHECKING:
    from plugin_core.runs.context import StepContext

#: Seconds between two saves of Ray Tune's state; Ray's default is at least 10.
SAVE_S = 1.0
TABLE = "trials.json"
#: A trial's actor needs no resources beside its workers', but Ray Tune requires some: a few bytes of memory.
TRIAL_RESOURCES = {"CPU": 0, "memory": 1}

logger = logging.getLogger(__name__)


def run(context: StepContext) -> TuneResult:
    os.environ.setdefault("TUNE_GLOBAL_CHECKPOINT_S", f"{SAVE_S:g}")
    from ray import tune

    from plugin_core.driver.tune import callbacks, report_channel
    from plugin_core.driver.tune.trial import Trial

    spec = context.spec
    assert isinstance(spec, TuneSpec)
    journal = JournalWriter(context.rundir, context.attempt)
    search = callbacks.begin(callbacks.Search(spec, journal, _deadline(spec, context)))
    filesystem = fenced_filesystem(context.rundir.uri, context.attempt)
    place = context.rundir.location.child(EXPERIMENT)
    parameters = {"run_uri": context.rundir.uri, "attempt": context.attempt, "mailbox": report_channel.make()}
    parameters["code"] = code.of_held(context.rundir)
    trainable = tune.with_resources(tune.with_parameters(Trial, **parameters), TRIAL_RESOURCES)
    context.set_phase("searching")
    if any(name.startswith("experiment_state") for name in place.names()):
        logger.info("resuming the search")
        tuner = tune.Tuner.restore(place.path, trainable, storage_filesystem=filesystem, resume_unfinished=True)
    else:
        failures = spec.train.run_config.failure_config.max_failures
        tuner = tune.Tuner(
            trainable,
            param_space=search_space.to_ray(spec.param_space),
            tune_config=tune.TuneConfig(
                metric=spec.metric,
                mode=spec.mode,
                num_samples=spec.num_samples,
                scheduler=make_scheduler(spec.scheduler),
                search_alg=make_searcher(spec.search_alg),
                max_concurrent_trials=_concurrent_trials(spec),
            ),
            run_config=tune.RunConfig(
                name=EXPERIMENT,
                storage_path=context.rundir.location.path,
                storage_filesystem=filesystem,
                stop=callbacks.Stop(),
                callbacks=[callbacks.Report()],
                failure_config=tune.FailureConfig(max_failures=failures),
                verbose=0,
            ),
        )
    try:
        grid = tuner.fit()
    finally:
        journal.close()
    if search.fatal is not None:
        raise search.fatal
    context.set_phase("collecting")
    return _collect(grid, spec, context)


def _deadline(spec: TuneSpec, context: StepContext) -> float | None:
    """The deadline on this process's monotonic clock, minus the time earlier attempts took; None if there is none."""
    if spec.time_budget_s is None:
        return None
    spent = 0.0
    for attempt in range(1, context.attempt):
        record = context.rundir.end(attempt) or context.rundir.heartbeat(attempt)
        spent += record.elapsed_s if record else 0.0
    return time.monotonic() + spec.time_budget_s - spent


def _concurrent_trials(spec: TuneSpec) -> int:
    """How many trials run at once: as many as the spec says and as fit on the cluster, at least one. Of more, some would
    hold what others wait for. A cluster that grows is left to grow."""
    import ray

    if spec.max_concurrent_trials and os.environ.get(AUTOSCALING):
        return spec.max_concurrent_trials
    have, wanted = ray.cluster_resources(), in_sum(spec.bundles())
    fit = max(1, int(min(have.get(name, 0.0) // amount for name, amount in wanted.items() if amount)))
    return min(spec.max_concurrent_trials or fit, fit)


def _collect(grid: Any, spec: TuneSpec, context: StepContext) -> TuneResult:
    legs = context.rundir.location.child(CHILDREN).names()
    over = [leg for leg in legs if context.rundir.child(leg).result() is not None]
    rows = [_row(result, spec, over) for result in grid]
    place = context.rundir.location.child(TABLE)
    place.write(json.dumps(rows, indent=1).encode())
    counts = {status: sum(row["status"] == status for row in rows) for status in ("finished", "stopped", "failed")}
    scored = [row for row in rows if row["status"] != "failed" and row[spec.metric] is not None]
    if not scored:
        raise _nothing(rows, grid, context)
    best = (max if spec.mode == "max" else min)(scored, key=lambda row: row[spec.metric])
    leg = context.rundir.child(best["run"])
    found = leg.result() or result_so_far(leg, spec.trial_spec(best["config"]))
    assert isinstance(found, TrainResult)
    return TuneResult(
        run=context.run,
        metrics=found.metrics,
        best=found,
        best_config=best["config"],
        trials=counts,
        table=place.uri,
        warnings=_failures(rows),
    )


def _failures(rows: list[dict[str, Any]]) -> list[str]:
    """What a person should know of the trials that failed in a search that found something."""
    errors = [row["error"] for row in rows if row["status"] == "failed"]
    return [f"{len(errors)} of {len(rows)} trials failed; the first: {errors[0]}"] if errors else []


def _row(result: Any, spec: TuneSpec, over: list[str]) -> dict[str, Any]:
    """A trial's row in the table: its config, how it ended, its last metrics. `over`: the legs that finished."""
    from plugin_core.driver.tune.trial import LEG, REPORTS

    metrics = result.metrics or {}
    trial = f"trial-{metrics.get('trial_id', '')}"
    leg = metrics.get(LEG) or trial
    if result.error is not None:
        status = "failed"
    else:
        status = "finished" if any(name.startswith(trial) for name in over) else "stopped"
    error = classify(result.error).message if result.error is not None else ""
    config = json_safe(result.config)
    value = json_safe(metrics.get(spec.metric))
    return {"run": leg, "status": status, "config": config, spec.metric: value, REPORTS: metrics.get(REPORTS, 0)} | (
        {"error": error} if error else {}
    )


def _nothing(rows: list[dict[str, Any]], grid: Any, context: StepContext) -> RayTrainWorkflowsError:
    """The error of a search in which no trial succeeded: that of the first trial."""
    for row in rows:
        if (end := context.rundir.child(row["run"]).end(context.attempt)) is not None:
            return from_outcome(end.outcome, f"all {len(rows)} trials failed; the first: {end.message}", end.details)
    for result in grid:
        if result.error is not None:
            return classify(result.error)
    return SpecError("time_budget_s: too short for a single report of a trial; expected more")
