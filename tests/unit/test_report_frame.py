"""A run's reports as a DataFrame, and their picture: read from real journals on disk."""

import importlib.util
import json
import math
import tracemalloc
from pathlib import Path
from typing import Any

import pandas
import pytest

import plugin_core
from devtools.written_runs import write_run
from plugin_core import RetrainResult, RunRef, TrainResult, TuneResult
from plugin_core.driver.retrain import part_name
from plugin_core.errors import SpecError
from plugin_core.runs import report_frame
from plugin_core.runs.directory import RunDir
from plugin_core.runs.journal import JournalWriter
from plugin_core.runs.plots import png

BEYOND = ["report", "index", "attempt", "rank", "time", "checkpoint"]


def report(number: int, index: int | None = None, checkpoint: str | None = None, **metrics: Any) -> dict[str, Any]:
    return {"report": number, "index": index or number, "metrics": metrics, "checkpoint": checkpoint}


def training(tmp_path: Path, *attempts: list[dict[str, Any]]) -> TrainResult:
    """The result so far of a training that is not over, with these entries of each attempt in its journal."""
    rundir = write_run(str(tmp_path), "run", "training", reports=0)
    for number, entries in enumerate(attempts, start=1):
        writer = JournalWriter(rundir, number)
        for entry in entries:
            writer.append(entry)
        writer.close()
    return TrainResult(run=RunRef(uri=rundir.uri, name="run"))


def raw(result: TrainResult, *lines: bytes) -> None:
    """Adds lines to its journal as somebody else may have written them."""
    Path(result.run.uri, ".step/journal/009-0000001.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))


def test_each_report_is_a_row_with_its_metrics(tmp_path: Path) -> None:
    nested = {"val": {"acc": 0.5, "top": {"k": 3}}}
    result = training(
        tmp_path, [report(1, loss=2.0, epoch=0), report(2, None, "checkpoint_a001_000002", epoch=1, **nested)]
    )
    frame = result.history()
    assert list(frame.columns) == [*BEYOND, "loss", "epoch", "val/acc", "val/top/k"]
    assert frame["report"].tolist() == [1, 2]
    assert frame["checkpoint"].tolist() == [None, f"{result.run.uri}/checkpoint_a001_000002"]
    assert frame["epoch"].dtype == "int64"
    assert frame["epoch"].tolist() == [0, 1]
    assert frame["val/acc"].isna().tolist() == [True, False]
    assert frame["val/top/k"].tolist()[1] == 3
    assert frame["time"].between(1.7e9, 4e9).all()
    pandas.testing.assert_frame_equal(plugin_core.history(result.run.uri), frame)


def test_a_live_runs_frame_grows(tmp_path: Path) -> None:
    result = training(tmp_path)
    assert len(result.history()) == 0
    assert list(result.history().columns) == BEYOND
    rundir = RunDir.at(result.run.uri)
    writer = JournalWriter(rundir, 1)
    for number in (1, 2):
        writer.append(report(number, loss=1 / number))
        writer.flush()
        assert result.history()["loss"].tolist() == [1.0, 0.5][:number]
    writer.close()


KILLED = (
    [report(n, n, f"c{n}" if n == 3 else None, loss=float(n)) for n in range(1, 7)],
    [report(7, 4, loss=40.0), report(8, 5, loss=50.0)],
)


def test_the_frame_is_that_of_a_training_that_nothing_interrupted(tmp_path: Path) -> None:
    frame = training(tmp_path, *KILLED).history()
    assert frame["index"].tolist() == [1, 2, 3, 4, 5], "6 was done by the killed attempt alone, and will be done again"
    assert frame["loss"].tolist() == [1, 2, 3, 40, 50]
    assert frame["attempt"].tolist() == [1, 1, 1, 2, 2]
    assert frame.index.tolist() == [0, 1, 2, 3, 4]


def test_all_reports_say_which_of_them_count(tmp_path: Path) -> None:
    frame = training(tmp_path, *KILLED).history(repeated=True)
    assert frame["report"].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert frame["counts"].tolist() == [True] * 3 + [False] * 3 + [True] * 2


def test_two_kills_at_the_same_report_leave_the_last_one(tmp_path: Path) -> None:
    attempts = [[report(1, 1, loss=1.0)], [report(2, 1, loss=2.0)], [report(3, 1, loss=3.0), report(4, 2, loss=4.0)]]
    result = training(tmp_path, *attempts)
    assert result.history()["loss"].tolist() == [3, 4]
    assert result.history(repeated=True)["counts"].tolist() == [False, False, True, True]


def test_a_journal_of_an_earlier_version_has_no_indices(tmp_path: Path) -> None:
    entries = [{"report": number, "metrics": {"loss": number}, "checkpoint": None} for number in (1, 2, 3)]
    assert training(tmp_path, entries).history()["index"].tolist() == [1, 2, 3]


def test_every_rank_is_a_row_where_the_run_kept_them(tmp_path: Path) -> None:
    def of(number: int, index: int) -> dict[str, Any]:
        ranks = [{"loss": number + rank / 10} for rank in range(3)]
        return {**report(number, index, **ranks[0]), "ranks": ranks}

    result = training(tmp_path, [of(1, 1), of(2, 2)], [of(3, 2)])
    frame = result.history()
    assert frame["rank"].tolist() == [0, 1, 2, 0, 1, 2]
    assert frame["loss"].tolist() == [1.0, 1.1, 1.2, 3.0, 3.1, 3.2]
    assert result.history(repeated=True)["counts"].tolist() == [True] * 3 + [False] * 3 + [True] * 3
    assert result.history(rank=2)["loss"].tolist() == [1.2, 3.2]
    with pytest.raises(SpecError, match=r"rank: got 3 of .*/run, which has no reports of it; expected 0 to 2"):
        result.history(rank=3)


def test_a_rank_that_was_not_kept_is_refused(tmp_path: Path) -> None:
    result = training(tmp_path, [report(1, loss=1.0)])
    assert len(result.history(rank=0)) == 1
    with pytest.raises(
        SpecError, match=r"rank: got 1 of .*, which has no reports of it; expected 0, as the run has no report_all_ranks"
    ):
        result.history(rank=1)


def test_a_validations_metrics_are_beside_those_of_its_report(tmp_path: Path) -> None:
    def ended(name: str, index: int, **metrics: Any) -> dict[str, Any]:
        return {"phase": "validated", "checkpoint": name, "index": index, "status": "validated", "metrics": metrics}

    entries = [{**report(n, n, f"c{n}", loss=1 / n), "validation": {}} for n in (1, 2, 3)]
    late = [ended("c1", 1, val={"acc": 0.1}, loss=9), ended("c3", 3, val={"acc": 0.3}), ended("no", 7, val={"acc": 7})]
    frame = training(tmp_path, [*entries, report(4, loss=0.2), *late]).history()
    assert frame["loss"].tolist() == [9, 1 / 2, 1 / 3, 0.2]
    assert frame["val/acc"].tolist()[::2] == [0.1, 0.3]
    assert frame["val/acc"].isna().tolist() == [False, True, False, True]
    drawn = plugin_core.plot(str(tmp_path / "run"), "val/acc").axes[0].lines[0]
    assert (drawn.get_xdata().tolist(), drawn.get_ydata().tolist()) == ([1, 3], [0.1, 0.3])


def test_a_metric_of_few_of_many_reports_is_drawn_with_all_its_points(tmp_path: Path) -> None:
    entries = [report(n, loss=1 / n, **({"val": n} if n % 101 == 0 else {})) for n in range(1, 3000)]
    drawn = training(tmp_path, entries).plot("val", "loss").axes
    assert drawn[0].lines[0].get_xdata().tolist() == list(range(101, 3000, 101))
    assert drawn[1].lines[0].get_xdata().tolist()[-1] == 2999


def test_only_the_metrics_that_are_asked_for(tmp_path: Path) -> None:
    result = training(tmp_path, [report(1, loss=1.0, val={"acc": 0.5})])
    assert list(result.history(["val/acc"]).columns) == [*BEYOND, "val/acc"]
    with pytest.raises(SpecError, match=r"metrics: got 'los', which no report has; .*'val/acc' \(did you mean loss\?\)"):
        result.history(["los"])
    assert list(training(tmp_path / "x").history(["later"]).columns) == [*BEYOND, "later"], "it may still come"


def test_values_of_any_kind_are_kept(tmp_path: Path) -> None:
    big = 10**400
    entries = [
        report(1, note="x", flag=True, mixed=1, huge=1, lists=[1, 2], nothing=None, late=None),
        report(2, note=None, flag=False, mixed="one", huge=big, lists=[], nothing=None, late=3),
        report(3, mixed=0.5, empty={}),
    ]
    frame = training(tmp_path, entries).history()
    assert frame["mixed"].tolist() == [1, "one", 0.5]
    assert frame["huge"].tolist()[:2] == [1, big]
    assert frame["flag"].tolist()[:2] == [True, False]
    assert frame["lists"].tolist()[:2] == [[1, 2], []]
    assert frame["nothing"].isna().all()
    assert frame["late"].tolist()[1] == 3
    assert frame["empty"].tolist()[2] == {}


def test_what_others_wrote_into_the_journal_does_no_harm(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    result = training(tmp_path, [report(1, loss=1.0)])
    raw(
        result,
        b'{"report": 2, "index": 2, "metrics": {"loss": NaN, "up": Infinity, "time": 5, "rank": 6}, "checkpoint": null}',
        b'{"report": 1' + b"0" * 30 + b', "metrics": {"loss": 7}}',
        b'{"report": 3, "index": 3, "time": 1e300, "metrics": {"loss": 3}, "ranks": [5, null, {"loss": 4}]}',
        b'{"report": 4, "index": 4, "metrics": {"loss": 5}, "checkpoint": "../../etc"}',
        b'{"report": 5, "ind',
    )
    frame = result.history()
    assert frame["report"].tolist() == [1, 2, 3, 3, 3]
    assert frame["metrics/time"].tolist()[1] == 5, "no metric takes the place of another column"
    assert frame["metrics/rank"].tolist()[1] == 6
    assert math.isinf(frame["up"].tolist()[1])
    assert math.isnan(frame["time"].tolist()[2])
    assert "leaving out a report with impossible numbers" in caplog.text
    assert "skipping a damaged line" in caplog.text


def test_ever_new_metrics_do_not_become_ever_more_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(report_frame, "COLUMNS", 5)
    result = training(tmp_path, [report(n, **{f"m{n}": n}) for n in range(1, 20)])
    assert list(result.history().columns) == [*BEYOND, "m1", "m2", "m3", "m4", "m5"]
    assert "more than 5 metrics; the first 5 are columns" in caplog.text
    assert result.history(["m19"])["m19"].tolist()[-1] == 19


def test_memory_is_about_that_of_the_frame(tmp_path: Path) -> None:
    rundir = write_run(str(tmp_path), "run", "training", reports=0)
    ranks = json.dumps([{"loss": 0.5, "note": "x" * 200}] * 20)
    for segment in range(1, 31):
        lines = (
            f'{{"attempt": 1, "time": 1.0, "report": {n}, "index": {n}, "metrics": {{"loss": 0.5}}, "ranks": {ranks}}}\n'
            for n in range(segment * 100, segment * 100 + 100)
        )
        rundir.step.child("journal", f"001-{segment:07}.jsonl").write("".join(lines).encode())
    plugin_core.history(rundir.uri, ["loss"])  # imports
    tracemalloc.start()
    try:
        frame = plugin_core.history(rundir.uri, ["loss"])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(frame) == 60_000
    assert peak < 3 * int(frame.memory_usage().sum()) + 2_000_000, "the journal has 15 MB"


def test_a_run_on_s3_is_read_by_its_uri(s3: str) -> None:
    rundir = write_run(s3, "history", "succeeded", reports=5)
    result = rundir.result()
    assert isinstance(result, TrainResult)
    assert result.history()["epoch"].tolist() == [0, 1, 2, 3, 4]
    assert labels(plugin_core.plot(rundir.uri, "loss")) == ["loss"]


def test_a_searchs_history_is_that_of_its_best_trial(tmp_path: Path) -> None:
    search = write_run(str(tmp_path), "search", "training", reports=0)
    record = json.loads(Path(search.uri, ".step/spec.json").read_text())
    Path(search.uri, ".step/spec.json").write_text(json.dumps({**record, "kind": "tune"}))
    with pytest.raises(
        SpecError, match="a search without a result yet; expected a finished search, a training, or a trial"
    ):
        plugin_core.history(search.uri)
    trial = search.child("trial-1")
    trial.write_child_spec(search.read_spec())
    writer = JournalWriter(trial, 1)
    for number in (1, 2):
        writer.append(report(number, loss=1 / number))
    writer.close()
    best = TrainResult(run=RunRef(uri="/elsewhere/trial-1", name="trial-1"))
    result = TuneResult(
        run=RunRef(uri=search.uri, name="search"), best=best, best_config={}, trials={"finished": 1}, table="t"
    )
    search.write_result(result)
    assert result.history()["loss"].tolist() == [1.0, 0.5], "also where the storage was moved to"
    assert labels(result.plot("loss")) == ["loss"]


def test_a_retrainings_history_is_that_of_its_training(tmp_path: Path) -> None:
    retraining = write_run(str(tmp_path), "weekly", "training", reports=0)
    record = json.loads(Path(retraining.uri, ".step/spec.json").read_text())
    Path(retraining.uri, ".step/spec.json").write_text(json.dumps({**record, "kind": "retrain"}))
    assert len(plugin_core.history(retraining.uri)) == 0, "it has not begun to train"
    part = retraining.child(part_name(retraining, "train"))
    part.write_child_spec(retraining.read_spec())
    writer = JournalWriter(part, 1)
    writer.append(report(1, loss=1.0))
    writer.close()
    result = RetrainResult(run=RunRef(uri=retraining.uri, name="weekly"), outcome="kept", reason="f1", champion=1)
    assert result.history()["loss"].tolist() == [1.0]


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    for read in (plugin_core.history, plugin_core.plot):
        with pytest.raises(SpecError, match=r"run: got '.*/nowhere'; expected a run directory"):
            read(str(tmp_path / "nowhere"))


@pytest.mark.parametrize(("call", "package"), [("history", "pandas"), ("plot", "matplotlib")])
def test_a_missing_package_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, package: str
) -> None:
    result = training(tmp_path, [report(1, loss=1.0)])
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else find(name))
    words = rf"{call}: got '.*/run', whose package {package} is not installed here; pip install .*\[history\]"
    with pytest.raises(SpecError, match=words):
        getattr(result, call)()


# ---- the picture


def labels(figure: Any) -> list[str]:
    return [axes.get_ylabel() for axes in figure.axes]


def test_the_picture_shows_the_metrics_over_the_epoch(tmp_path: Path) -> None:
    result = training(tmp_path, [report(n, epoch=n - 1, loss=1 / n, val={"acc": n}) for n in range(1, 4)])
    figure = result.plot()
    assert labels(figure) == ["loss", "val/acc"]
    assert figure.axes[-1].get_xlabel() == "epoch"
    assert figure.axes[0].lines[0].get_xdata().tolist() == [0, 1, 2]
    assert labels(result.plot("val/acc")) == ["val/acc"]
    assert png(figure).startswith(b"\x89PNG")


def test_the_picture_leaves_out_what_was_repeated_and_samples_many_reports(tmp_path: Path) -> None:
    figure = training(tmp_path, *KILLED).plot("loss")
    assert figure.axes[0].lines[0].get_ydata().tolist() == [1, 2, 3, 40, 50]
    many = training(tmp_path / "x", [report(n, loss=1 / n) for n in range(1, 5000)])
    assert 100 <= len(many.plot().axes[0].lines[0].get_xdata()) <= 201


def test_names_and_values_of_any_kind_can_be_drawn(tmp_path: Path) -> None:
    names = ["$\\frac{", "\x1b[31mred\n", "損失", "a" * 5000]
    odd = [1e308, -math.inf, math.nan, 10**400, "text", None, True, 1e299, -1e299, 5]
    result = training(tmp_path, [report(n, **dict.fromkeys(names, value)) for n, value in enumerate(odd, start=1)])
    figure = result.plot()
    assert labels(figure) == ["$\\frac{", "red", "損失", f"{'a' * 60}…"]
    assert figure.axes[0].lines[0].get_xdata().tolist() == [8, 9, 10]
    assert png(figure).startswith(b"\x89PNG")


def test_a_run_without_a_curve_and_an_unknown_metric_are_refused(tmp_path: Path) -> None:
    result = training(tmp_path, [report(1, loss=1.0, note="x")])
    with pytest.raises(
        SpecError, match=r"run: got '.*/run', which has no metric to draw yet; expected at least two reports"
    ):
        result.plot()
    with pytest.raises(SpecError, match=r"metrics: got 'los', which no report has; expected one of 'loss' \(did you mean"):
        result.plot("los")
    with pytest.raises(SpecError, match="metrics: got 51; expected at most 50"):
        result.plot(*map(str, range(51)))
