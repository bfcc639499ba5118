"""What a finished step has to show: a table of its reports, their plot, and a page of Markdown. Any engine may use it."""

from __future__ import annotations

import base64
import io
from typing import Any

from plugin_core.progress import COUNTERS, duration, is_number
from plugin_core.results import AnyResult, EvaluationResult, RetrainResult, TuneResult
from plugin_core.rundir import RunDir
from plugin_core.storage import Location

#: A table or plot of more reports than this shows every so-manyth, and the last.
ROWS = 200
#: More metrics than this are in the table alone.
CURVES = 6


def metric_rows(reports: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The reports as rows of a table: number, attempt, metrics."""
    return [{"report": entry["report"], "attempt": entry["attempt"], **entry["metrics"]} for entry in _thinned(reports)]


def plot_png(reports: list[dict[str, Any]]) -> bytes | None:
    """The metrics as a PNG, over the counter that all reports have, or else over the reports' numbers. What a later attempt
    repeated stands there as it was last. None when there is no curve to draw, or no matplotlib."""
    counter = next((name for name in COUNTERS if all(is_number(entry["metrics"].get(name)) for entry in reports)), None)
    curves = _curves(_thinned(reports), counter)
    if not curves:
        return None
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    figure = Figure(figsize=(7, 2.2 * len(curves)), layout="constrained")
    for axes, (name, points) in zip(figure.subplots(len(curves), squeeze=False)[:, 0], curves.items(), strict=True):
        axes.plot(*zip(*points, strict=True), marker="o" if len(points) < 30 else None, markersize=3)
        axes.set_ylabel(name)
        axes.grid(alpha=0.3)
    axes.set_xlabel(counter or "report")
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=80)
    return file.getvalue()


def markdown(rundir: RunDir, result: AnyResult | None, reports: list[dict[str, Any]]) -> str:
    """The run on a page: how it ended, where things are, the metrics and their plot. `result` None: it has none (yet)."""
    rows = {"run directory": f"`{rundir.uri}`", "attempts": str(rundir.latest())}
    if result is None:
        end = rundir.end(rundir.latest())
        rows["ended"] = f"{end.outcome}: {end.message}".splitlines()[0] if end else "no end is recorded"
    for name in ("checkpoint", "best_checkpoint"):
        if (checkpoint := getattr(result, name, None)) is not None:
            rows[name.replace("_", " ")] = f"`{checkpoint.uri}`"
    if output := getattr(result, "output", None):
        rows["output"] = f"`{output}`, {getattr(result, 'rows', 0)} rows"
    if isinstance(result, TuneResult):
        rows["trials"] = ", ".join(f"{count} {status}" for status, count in result.trials.items() if count)
        rows |= {"best": f"`{result.best_config}`", "table of trials": f"`{result.table}`"}
    if isinstance(result, RetrainResult):
        rows |= {"outcome": f"{result.outcome}: {result.reason}", "champion": f"version {result.champion}"}
    if reports:
        rows["reports"] = str(len(reports))
        rows["from first to last report"] = duration(reports[-1]["time"] - reports[0]["time"])
    title = f"{rundir.read_record()['kind'].replace('_', ' ')} {rundir.name}"
    lines = [f"## {title}", "", "| | |", "|---|---|", *(f"| {name} | {_cell(value)} |" for name, value in rows.items())]
    metrics = result.metrics if result is not None else reports[-1]["metrics"] if reports else {}
    if metrics:
        lines += ["", "| metric | value |", "|---|---|", *(f"| {_cell(k)} | {_cell(v)} |" for k, v in metrics.items())]
    if isinstance(result, EvaluationResult):
        verdict = [f"- {_cell(name)}: {_cell(why)}" for name, why in result.failed.items()]
        lines += ["", "Good enough." if result.passed else "Not good enough:", *verdict]
        for name, place in result.plots.items():
            lines += ["", _inline(name.replace("_", " "), Location.of(place).read())]
    lines += ["", _inline("the metrics", plot_png(reports))]
    return "\n".join(lines).rstrip()


def _inline(name: str, png: bytes | None) -> str:
    return f"![{name}](data:image/png;base64,{base64.b64encode(png).decode()})" if png is not None else ""


def _curves(reports: list[dict[str, Any]], counter: str | None) -> dict[str, list[tuple[float, float]]]:
    curves: dict[str, dict[float, float]] = {}
    for entry in reports:
        place = entry["metrics"][counter] if counter else entry["report"]
        for name, value in entry["metrics"].items():
            if is_number(value) and name not in (*COUNTERS, "progress"):
                curves.setdefault(name, {})[place] = value
    return {name: sorted(points.items()) for name, points in list(curves.items())[:CURVES] if len(points) > 1}


def _thinned(reports: list[dict[str, Any]]) -> list[dict[str, Any]]:
    every = -(-len(reports) // ROWS)
    return [entry for number, entry in enumerate(reports, 1) if number % every == 0 or number == len(reports)]


def _cell(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")
