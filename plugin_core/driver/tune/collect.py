"""What a search found: the table of its trials, and the result of the best one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from plugin_core.driver.train.step import result_so_far
from plugin_core.driver.tune.plots import plots
from plugin_core.driver.tune.report_channel import LEG, REPORTS
from plugin_core.driver.tune.resumed import RESUMED, Resumed
from plugin_core.errors import RayTrainWorkflowsError, SpecError, from_outcome
from plugin_core.errors.classify import classify
from plugin_core.runs.directory import CHILDREN, RunDir
from plugin_core.runs.finished_search import TABLE, best_of, leg_of
from plugin_core.runs.trial_table import as_markdown
from plugin_core.specs import TrainSpec, TuneSpec
from plugin_core.specs.json_values import json_safe
from plugin_core.specs.results import TrainResult, TuneResult

if TYPE_CHECKING:
    from plugin_core.runs.context import StepContext

#: The table for people, besides the one as data.
PAGE = "trials.md"


def collect(grid: Any, spec: TuneSpec, context: StepContext, taken: Resumed | None = None) -> TuneResult:
    """The search's result, and its table. Raises SpecError or the first trial's error if no trial has a result."""
    legs = context.rundir.location.child(CHILDREN).names()
    over = [leg for leg in legs if context.rundir.child(leg).result() is not None]
    rows = [_row(result, spec, over) for result in grid]
    if taken is not None:
        rows = _with_kept(rows, spec, taken)
    place, page = context.rundir.location.child(TABLE), context.rundir.location.child(PAGE)
    place.write(json.dumps(rows, indent=1).encode())
    page.write(as_markdown(rows, spec).encode())
    counts = {status: sum(row["status"] == status for row in rows) for status in ("finished", "stopped", "failed", "kept")}
    if not counts["kept"]:
        del counts["kept"]
    best = best_of(rows, spec)
    if best is None:
        raise _nothing(rows, grid, context)
    drawn = {}
    for name, png in plots(rows, spec, context.rundir).items():
        picture = context.rundir.location.child(f"{name}.png")
        picture.write(png)
        drawn[name] = picture.uri
    leg = leg_of(context.rundir, best)
    found = leg.result() or result_so_far(leg, _spec_of(leg))
    assert isinstance(found, TrainResult)
    return TuneResult(
        run=context.run,
        metrics=found.metrics,
        best=found,
        best_config=best["config"],
        trials=counts,
        table=place.uri,
        table_markdown=page.uri,
        plots=drawn,
        warnings=[*_failures(rows), *_begun_anew(taken)],
    )


def _spec_of(leg: RunDir) -> TrainSpec:
    spec = leg.read_spec()
    assert isinstance(spec, TrainSpec)
    return spec


def _with_kept(rows: list[dict[str, Any]], spec: TuneSpec, taken: Resumed) -> list[dict[str, Any]]:
    """The rows of this search's trials, with those of the finished search that count: all of them, or those of trials
    that did not report again. Raises SpecError if no trial had anything left to train."""
    assert spec.resume_from is not None
    if spec.resume_from.trials == "none":
        return [*taken.kept, *rows]
    if all(_is_as_before(row) and row["status"] == "finished" for row in rows):
        raise SpecError(
            "resume_from.trials: no trial had anything left to train; expected a training that goes on, such as one of more"
            " epochs in train.train_loop_config"
        )
    return [taken.row_of(row["from"]) if _is_as_before(row) else row for row in rows]


def _is_as_before(row: dict[str, Any]) -> bool:
    return row["status"] != "failed" and not row[REPORTS]


def _begun_anew(taken: Resumed | None) -> list[str]:
    if taken is None or not taken.without_checkpoint:
        return []
    return [f"resume_from: {taken.without_checkpoint} trials had no checkpoint to train further from and began anew"]


def _failures(rows: list[dict[str, Any]]) -> list[str]:
    """What a person should know about the trials that failed in a search that found something."""
    errors = [row["error"] for row in rows if row["status"] == "failed"]
    return [f"{len(errors)} of {len(rows)} trials failed; the first: {errors[0]}"] if errors else []


def _row(result: Any, spec: TuneSpec, over: list[str]) -> dict[str, Any]:
    """A trial's row in the table: its config, how it ended, its last metrics. `over`: the legs that finished."""
    metrics, config = result.metrics or {}, json_safe(result.config)
    source = config.pop(RESUMED, None)
    trial = f"trial-{metrics.get('trial_id', '')}"
    leg = metrics.get(LEG) or (RunDir.at(source["run"]).name if source else trial)
    if result.error is not None:
        status = "failed"
    else:
        status = "finished" if leg in over or any(name.startswith(trial) for name in over) else "stopped"
    error = classify(result.error).message if result.error is not None else ""
    value = json_safe(metrics.get(spec.metric))
    row = {"run": leg, "trial": metrics.get("trial_id"), "status": status, "config": config, spec.metric: value}
    row[REPORTS] = metrics.get(REPORTS, 0)
    return row | ({"from": source["run"]} if source else {}) | ({"error": error} if error else {})


def _nothing(rows: list[dict[str, Any]], grid: Any, context: StepContext) -> RayTrainWorkflowsError:
    """The error of a search in which no trial succeeded: that of the first trial."""
    for row in rows:
        if (end := leg_of(context.rundir, row).end(context.attempt)) is not None:
            return from_outcome(end.outcome, f"all {len(rows)} trials failed; the first: {end.message}", end.details)
    for result in grid:
        if result.error is not None:
            return classify(result.error)
    return SpecError("time_budget_s: too short for a single report of a trial; expected more")
