"""Reports on a finished step for any engine: a table of its reports, a plot of them, and a Markdown page."""

from __future__ import annotations

import base64
import errno
import importlib.util
from typing import Any

from plugin_core.errors import StorageError
from plugin_core.errors.plain_text import markdown_code, markdown_text
from plugin_core.runs.directory import RunDir
from plugin_core.runs.history import History
from plugin_core.runs.ledger import rounded
from plugin_core.runs.ledgers import ledger_of
from plugin_core.runs.plots import Drawing, png
from plugin_core.runs.trial_table import as_markdown, shown_rows
from plugin_core.specs import TuneSpec
from plugin_core.specs.results import EvaluationResult, RetrainResult, StepResult, TuneResult
from plugin_core.specs.step_kinds import step_kind
from plugin_core.storage.stored_files import Object, parse
from plugin_core.supervisor.progress import duration, effective_time

#: Plots larger than this, in bytes, are not shown.
PLOT_BYTES = 4 * 2**20
#: A table of trials larger than this, in bytes, is not shown.
TABLE_BYTES = 16 * 2**20
_PNG = b"\x89PNG"


def metric_rows(history: History) -> list[dict[str, Any]]:
    """Return the reports as table rows: number, attempt, metrics. If there are many: every n-th, and the last."""
    return [{"report": entry["report"], "attempt": entry["attempt"], **entry["metrics"]} for entry in history.sample]


def plot_png(history: History) -> bytes | None:
    """Plot the metrics as a PNG (see `Drawing`). None if there is no curve to draw, or no matplotlib."""
    drawing = Drawing(history.sample)
    if not drawing.curves or importlib.util.find_spec("matplotlib") is None:
        return None
    return png(drawing.figure())


def markdown_report(rundir: RunDir, result: StepResult | None, history: History) -> str:
    """Summarise the run on a page: how it ended, its paths, metrics and their plot. `result` is None if there is none."""
    rows = {"run directory": markdown_code(rundir.uri), "attempts": str(rundir.latest())}
    if result is None:
        end = rundir.end(rundir.latest())
        rows["ended"] = _cell(f"{end.outcome}: {end.message}".splitlines()[0] if end else "no end recorded")
    for name in ("checkpoint", "best_checkpoint"):
        if (checkpoint := getattr(result, name, None)) is not None:
            rows[name.replace("_", " ")] = markdown_code(checkpoint.uri)
    if output := getattr(result, "output", None):
        count = getattr(result, "rows", None)
        rows["output"] = markdown_code(output) + (f", {count} rows" if count is not None else "")
    if isinstance(result, TuneResult):
        rows["trials"] = _cell(", ".join(f"{count} {status}" for status, count in result.trials.items() if count))
        rows |= {"best": markdown_code(result.best_config), "table of trials": markdown_code(result.table)}
    if isinstance(result, RetrainResult):
        rows |= {"outcome": _cell(f"{result.outcome}: {result.reason}"), "champion": f"version {result.champion}"}
    if history.first is not None and history.last is not None:
        rows["reports"] = str(history.reports)
        rows["from first to last report"] = duration(history.last["time"] - history.first["time"])
        rows["effective training time"] = effective_time(rounded(ledger_of(rundir)))
    title = markdown_text(f"{rundir.read_record()['kind'].replace('_', ' ')} {rundir.name}")
    lines = [f"## {title}", "", "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]
    metrics = result.metrics if result is not None else history.metrics
    if metrics:
        lines += ["", "| metric | value |", "|---|---|", *(f"| {_cell(k)} | {_cell(v)} |" for k, v in metrics.items())]
    if isinstance(result, EvaluationResult):
        verdict = [f"- {_cell(name)}: {_cell(why)}" for name, why in result.failed.items()]
        lines += ["", "Passed." if result.passed else "Not passed:", *verdict]
    if isinstance(result, TuneResult) and (trials := _trials(rundir, result)):
        lines += ["", as_markdown(trials, _search(rundir))]
    if isinstance(result, (EvaluationResult, TuneResult)):
        for name, place in result.plots.items():
            lines += ["", _inline(name.replace("_", " "), _plot(rundir, place))]
    lines += ["", _inline("the metrics", plot_png(history))]
    return "\n".join(lines).rstrip()


def effective_time_of(rundir: RunDir) -> str:
    """The useful share of a finished run's time, and its parts, in words; "" for a run without reports or a ledger."""
    result = rundir.result()
    if result is None or not result.ledger or not step_kind(result.kind).reports:
        return ""
    return effective_time(result.ledger)


def trial_rows(rundir: RunDir, result: StepResult | None) -> list[dict[str, Any]]:
    """The trials of a search as table rows, the best first; of many, only the best. None for another kind of step."""
    found = _trials(rundir, result) if isinstance(result, TuneResult) else []
    return shown_rows(found, _search(rundir)) if found else []


def _trials(rundir: RunDir, result: TuneResult) -> list[dict[str, Any]]:
    """The rows of the table that the result names; none if it is not in the run directory, or too large."""
    data = _inside(rundir, result.table, TABLE_BYTES)
    return parse(list[Object], data, result.table) if data is not None else []


def _search(rundir: RunDir) -> TuneSpec:
    spec = rundir.read_spec()
    assert isinstance(spec, TuneSpec)
    return spec


def _inline(name: str, png: bytes | None) -> str:
    if png is None:
        return ""
    return f"![{markdown_text(name)}](data:image/png;base64,{base64.b64encode(png).decode()})"


def _plot(rundir: RunDir, uri: str) -> bytes | None:
    """Read a plot that the result names, if it is a PNG."""
    png = _inside(rundir, uri, PLOT_BYTES)
    return png if png is not None and png.startswith(_PNG) else None


def _inside(rundir: RunDir, uri: str, at_most: int) -> bytes | None:
    """Read a file that the result names, only in the run directory: a result must not expose other files. None also for
    a file larger than `at_most`."""
    place = rundir.location.inside(uri)
    try:
        return place.read(at_most) if place is not None else None
    except StorageError as exc:
        if getattr(exc.__cause__, "errno", None) != errno.EFBIG:
            raise
        return None


def _cell(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return markdown_text(text)
