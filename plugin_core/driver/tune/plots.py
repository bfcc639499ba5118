"""Plots of a search: each trial's metric, and the metric over the reports of the best trials."""

from __future__ import annotations

import itertools
from typing import Any

from plugin_core.driver.figures import new_figure, png
from plugin_core.driver.tune.report_channel import REPORTS
from plugin_core.runs.directory import RunDir
from plugin_core.runs.journal import iter_reports
from plugin_core.runs.trial_table import best_first
from plugin_core.specs import TuneSpec
from plugin_core.specs.json_values import is_number

#: The most trials whose reports are drawn (the best ones), and the most points of a line.
CURVES, POINTS = 30, 500
#: The most trials that are drawn as points.
DOTS = 10_000
#: A status → its marker.
_MARKERS = {"finished": "o", "stopped": "v", "kept": "s"}

Curve = dict[int, float]


def plots(rows: list[dict[str, Any]], spec: TuneSpec, rundir: RunDir) -> dict[str, bytes]:
    """Plot a search; PNGs by name, none without matplotlib or a trial with a metric. `rows`: of its table."""
    if not any(is_number(row.get(spec.metric)) for row in rows) or (figure := new_figure(7, 6)) is None:
        return {}
    trials, reports = figure.subplots(2)
    _draw_trials(trials, rows, spec)
    _draw_curves(reports, curves(rows, spec, rundir))
    for axes in (trials, reports):
        axes.set_ylabel(spec.metric, parse_math=False)
        axes.grid(alpha=0.3)
    return {"trials": png(figure)}


def _draw_trials(axes: Any, rows: list[dict[str, Any]], spec: TuneSpec) -> None:
    better = max if spec.mode == "max" else min
    scored = [(number, row) for number, row in enumerate(rows, 1) if is_number(row.get(spec.metric))]
    best = list(itertools.accumulate((row[spec.metric] for _, row in scored), better))
    every = 1 + len(scored) // DOTS
    numbers = [number for number, _ in scored]
    axes.step(numbers[::every], best[::every], where="post", color="0.5", linewidth=1, label="best so far")
    for status, marker in _MARKERS.items():
        points = [(number, row[spec.metric]) for number, row in scored[::every] if row["status"] == status]
        if points:
            axes.plot(*zip(*points, strict=True), marker, markersize=4, label=status)
    axes.legend(fontsize="small")
    axes.set_xlabel("trial")


def _draw_curves(axes: Any, found: list[Curve]) -> None:
    """Draw the best trial's curve last, over the others."""
    for place, curve in reversed(list(enumerate(found))):
        points = sorted(curve.items())
        look: dict[str, Any] = {"color": "C1", "linewidth": 1.5} if place == 0 else {"color": "0.7", "linewidth": 0.8}
        axes.plot(*zip(*points, strict=True), marker="o" if len(points) < 30 else None, markersize=3, **look)
    axes.set_xlabel(f"report (the best of {len(found)} trials in colour)")


def curves(rows: list[dict[str, Any]], spec: TuneSpec, rundir: RunDir) -> list[Curve]:
    """The metric by report number, for the best trials that ran in this search, the best first. If a later attempt
    repeated a report, the last one counts."""
    drawn = [row for row in best_first(rows, spec) if row.get("trial") and row["status"] not in ("kept", "failed")]
    del drawn[CURVES:]
    found: dict[str, Curve] = {row["trial"]: {} for row in drawn}
    every = dict.fromkeys(found, 1)
    for entry in iter_reports(rundir):
        trial, number, value = entry["metrics"].get("trial"), entry.get("of_trial"), entry["metrics"].get(spec.metric)
        if trial not in found or type(number) is not int or not is_number(value) or number % every[trial]:
            continue
        found[trial][number] = value
        if len(found[trial]) > POINTS:
            every[trial] *= 2
            found[trial] = {place: kept for place, kept in found[trial].items() if place % every[trial] == 0}
    for row in drawn:
        if is_number(row.get(spec.metric)) and row.get(REPORTS):
            found[row["trial"]][row[REPORTS]] = row[spec.metric]
    return [curve for curve in found.values() if curve]
