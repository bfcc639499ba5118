"""The table and the plots of a search's trials."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from plugin_core import RunConfig, RunRef, TrainResult, TrainSpec, TuneResult, TuneSpec
from plugin_core.driver.tune import callbacks
from plugin_core.driver.tune.collect import collect
from plugin_core.driver.tune.plots import CURVES, POINTS, curves, plots
from plugin_core.runs.context import StepContext
from plugin_core.runs.directory import RunDir
from plugin_core.runs.history import History
from plugin_core.runs.journal import JournalWriter, iter_reports
from plugin_core.runs.trial_table import ROWS, as_markdown, shown_rows
from plugin_core.specs import outcomes
from plugin_core.supervisor.report import markdown_report, trial_rows
from tests.support.grid import grid_result


def search(tmp_path: Path, mode: Any = "min") -> TuneSpec:
    return TuneSpec(
        train=TrainSpec(framework="python", train_loop_per_worker="a:b"),
        param_space={"train_loop_config": {"lr": {"uniform": [0, 1]}}},
        metric="loss",
        mode=mode,
        run_config=RunConfig(name="search", storage_path=str(tmp_path)),
    )


def row(number: int, loss: float | None, status: str = "finished", **more: Any) -> dict[str, Any]:
    config = {"train_loop_config": {"lr": number / 10}}
    named = {"run": f"trial-{number}", "trial": str(number), "status": status, "config": config}
    return {**named, "loss": loss, "reports": 2, **more}


ROWS_OF_FOUR = [row(1, 0.5), row(2, 0.25, "stopped"), row(3, None, "failed", error="no | good"), row(4, 0.125, "kept")]


def test_the_table_has_the_best_first_and_the_failed_last(tmp_path: Path) -> None:
    shown = shown_rows(ROWS_OF_FOUR, search(tmp_path))
    assert [each["trial"] for each in shown] == ["trial-4", "trial-2", "trial-1", "trial-3"]
    assert shown[0] == {
        "trial": "trial-4", "status": "kept", "loss": 0.125, "reports": 2, "train_loop_config.lr": 0.4
    }  # fmt: skip
    assert shown_rows(ROWS_OF_FOUR, search(tmp_path, "max"))[0]["trial"] == "trial-1"


def test_the_table_in_markdown_escapes_what_would_break_it(tmp_path: Path) -> None:
    bad = row(5, 0.1, config={"train_loop_config": {"x|y": "<b>\n[a](http://x)", "f": "value:made#12ab"}})
    page = as_markdown([*ROWS_OF_FOUR, bad], search(tmp_path)).splitlines()
    assert page[0].startswith("| trial | status | loss | reports | train_loop_config.x\\|y |")
    assert page[2] == "| trial-5 | finished | 0.1 | 2 | &lt;b&gt; \\[a\\](http://x) | made |  |  |"
    assert page[-1].endswith("| no \\| good |")
    assert len(page) == 2 + 5


def test_a_million_trials_make_a_short_page(tmp_path: Path) -> None:
    page = as_markdown([row(number, float(number)) for number in range(ROWS + 1000)], search(tmp_path))
    assert len(page.splitlines()) == 2 + ROWS + 2
    assert page.endswith("1,000 more trials are in the table as data.")


def reported(trial: str, number: Any, loss: Any) -> dict[str, Any]:
    return {"report": number, "metrics": {"trial": trial, "loss": loss}, "checkpoint": None, "of_trial": number}


def journal(rundir: RunDir, entries: list[dict[str, Any]]) -> None:
    writer = JournalWriter(rundir, 1)
    for entry in entries:
        writer.append(entry)
    writer.close()


def test_curves_are_of_the_best_trials_and_a_repeated_report_counts_once(tmp_path: Path) -> None:
    rundir, spec = RunDir.of(search(tmp_path)), search(tmp_path)
    told = [("1", 1, 0.9), ("2", 1, 0.8), ("1", 2, 0.7), ("1", 2, 0.5), ("4", 1, 0.1), ("3", 1, 0.1), ("2", 2, None)]
    journal(rundir, [reported(*each) for each in told])
    writer = JournalWriter(rundir, 2)
    writer.append({**reported("2", 3, 1.0), "of_trial": "x"})
    writer.close()
    assert curves(ROWS_OF_FOUR, spec, rundir) == [{1: 0.8, 2: 0.25}, {1: 0.9, 2: 0.5}]


def test_many_reports_of_many_trials_are_thinned(tmp_path: Path) -> None:
    rundir, spec = RunDir.of(search(tmp_path)), search(tmp_path)
    many = 4 * POINTS
    journal(rundir, [reported("0", number, 1.0) for number in range(1, many + 1)])
    rows = [row(0, 0.0, reports=many), *(row(number, 1.0) for number in range(1, CURVES + 50))]
    found = curves(rows, spec, rundir)
    assert len(found) == CURVES
    assert POINTS / 2 <= len(found[0]) <= POINTS + 1
    assert found[0][many] == 0.0


def test_a_plot_is_a_png_and_none_without_a_metric_or_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rundir = RunDir.of(search(tmp_path))
    spec = search(tmp_path).model_copy(update={"metric": "$\\broken$"})
    rows = [{**each, "$\\broken$": each["loss"]} for each in ROWS_OF_FOUR]
    assert plots(rows, spec, rundir)["trials"].startswith(b"\x89PNG")
    assert plots([row(1, None)], search(tmp_path), rundir) == {}
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert plots(ROWS_OF_FOUR, search(tmp_path), rundir) == {}


def test_a_search_writes_its_table_and_plot_and_the_engines_show_them(tmp_path: Path) -> None:
    spec = search(tmp_path)
    rundir = RunDir.of(spec)
    rundir.write_spec(spec)
    leg = rundir.child("trial-a")
    leg.write_result(TrainResult(run=RunRef(uri=leg.uri, name=leg.name), metrics={"loss": 0.5}))
    context = StepContext(spec, rundir, 1, {}, lambda phase: None)
    reports = {"loss": 0.5, "leg": "trial-a", "reports": 3}
    result = collect([grid_result("a", {"train_loop_config": {"lr": 0.1}}, reports)], spec, context)
    assert result.table_markdown is not None
    table = Path(result.table_markdown).read_text()
    assert table.splitlines()[2] == "| trial-a | finished | 0.5 | 3 | 0.1 |"
    assert Path(result.plots["trials"]).read_bytes().startswith(b"\x89PNG")
    assert trial_rows(rundir, result) == shown_rows(json.loads(Path(result.table).read_text()), spec)
    page = markdown_report(rundir, result, History())
    assert table in page
    assert "![trials](data:image/png;base64,iVBOR" in page
    assert outcomes.tune(spec, result)[-2:] == [
        f"table of trials: {result.table_markdown}",
        f"plot: {result.plots['trials']}",
    ]


def test_a_result_shows_no_table_from_elsewhere(tmp_path: Path) -> None:
    spec = search(tmp_path)
    rundir = RunDir.of(spec)
    rundir.write_spec(spec)
    run = RunRef(uri=rundir.uri, name="search")
    elsewhere = tmp_path / "secret.json"
    elsewhere.write_text(json.dumps([row(1, 0.5)]))
    result = TuneResult(run=run, best=TrainResult(run=run), best_config={}, trials={}, table=str(elsewhere))
    assert trial_rows(rundir, result) == []
    assert "trial-1" not in markdown_report(rundir, result, History())
    assert trial_rows(rundir, TrainResult(run=run)) == []


def test_each_report_of_the_search_says_which_of_its_trials_it_is(tmp_path: Path) -> None:
    spec = search(tmp_path)
    writer = JournalWriter(RunDir.of(spec), 1)
    found = callbacks.Search(spec, writer, None, trials=4)
    trial = type("Trial", (), {"trial_id": "a"})
    found.tell(trial, {"loss": 0.5, "reports": 7})
    writer.close()
    (entry,) = iter_reports(RunDir.of(spec))
    assert (entry["of_trial"], entry["trials"], entry["metrics"]["loss"]) == (7, 4, 0.5)
