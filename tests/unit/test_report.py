"""What a finished step has to show."""

from pathlib import Path

from plugin_core import EvaluationResult, RetrainResult, RunRef, TrainResult, TuneResult
from plugin_core.runs.directory import RunDir
from plugin_core.runs.history import ROWS, History
from plugin_core.runs.plots import Drawing
from plugin_core.specs import parse_spec
from plugin_core.supervisor import report


def entry(number: int, attempt: int = 1, **metrics: float) -> dict:
    return {"report": number, "attempt": attempt, "time": 100.0 + number, "metrics": metrics, "checkpoint": None}


def test_the_table_has_a_row_for_each_report() -> None:
    rows = report.metric_rows(History.of([entry(1, loss=0.5), entry(2, attempt=2, loss=0.4)]))
    assert rows == [{"report": 1, "attempt": 1, "loss": 0.5}, {"report": 2, "attempt": 2, "loss": 0.4}]


def test_a_long_table_is_thinned_and_keeps_the_last_report() -> None:
    rows = report.metric_rows(History.of(entry(number, loss=0.5) for number in range(1, 1002)))
    assert ROWS / 2 <= len(rows) <= ROWS + 1
    assert rows[-1]["report"] == 1001


def test_the_plot_is_a_png_over_the_common_counter_and_the_last_of_repeated_values_counts() -> None:
    reports = [entry(1, epoch=0, loss=1.0), entry(2, epoch=1, loss=0.5), entry(3, attempt=2, epoch=1, loss=0.6)]
    assert Drawing(reports).curves == {"loss": [(0, 1.0), (1, 0.6)]}
    assert report.plot_png(History.of(reports)).startswith(b"\x89PNG")


def test_a_single_report_or_text_makes_no_plot() -> None:
    assert report.plot_png(History()) is None
    assert report.plot_png(History.of([entry(1, loss=1.0)])) is None


def test_the_page_says_how_it_ended_and_escapes_what_would_break_its_table(tmp_path: Path) -> None:
    rundir = RunDir.at(str(tmp_path / "run"))
    spec = {"train_loop_per_worker": "a:b", "framework": "python"}
    rundir.write_spec(parse_spec(spec).with_name("run", str(tmp_path)))
    result = TrainResult(
        run=RunRef(uri=rundir.uri, name="run"), metrics={"a|b": 1 / 3}, checkpoint={"uri": f"{rundir.uri}/c1"}
    )
    page = report.markdown_report(rundir, result, History.of([entry(1, loss=1.0), entry(95, loss=0.5)]))
    assert "| a\\|b | 0.333333 |" in page
    assert f"| checkpoint | `{rundir.uri}/c1` |" in page
    assert "| from first to last report | 2 min |" in page
    assert "](data:image/png;base64,iVBOR" in page
    assert "no end recorded" in report.markdown_report(rundir, None, History())


def test_an_evaluations_page_has_its_plots_and_a_searchs_page_its_best_trial(tmp_path: Path) -> None:
    rundir = RunDir.at(str(tmp_path / "run"))
    rundir.write_spec(parse_spec({"train_loop_per_worker": "a:b", "framework": "python"}).with_name("run", str(tmp_path)))
    run = RunRef(uri=rundir.uri, name="run")
    plot = rundir.location.child("confusion_matrix.png")
    plot.write(b"\x89PNG")
    judged = EvaluationResult(
        run=run, passed=False, failed={"f1": "0.5 < min 0.9"}, plots={"confusion_matrix": plot.uri, "gone": "/nowhere"}
    )
    page = report.markdown_report(rundir, judged, History())
    assert "![confusion matrix](data:image/png;base64,iVBORw==)" in page
    assert "Not passed:\n- f1: 0.5 &lt; min 0.9" in page
    found = TuneResult(
        run=run,
        best=TrainResult(run=run),
        best_config={"params": {"eta": 0.1}},
        trials={"finished": 3, "stopped": 0, "failed": 1},
        table="/t",
    )
    page = report.markdown_report(rundir, found, History())
    assert "| trials | 3 finished, 1 failed |" in page
    assert "| best | `{'params': {'eta': 0.1}}` |" in page
    kept = RetrainResult(run=run, outcome="kept", reason="f1: 0.5 < 0.6", champion=2)
    assert "| outcome | kept: f1: 0.5 &lt; 0.6 |" in report.markdown_report(rundir, kept, History())
