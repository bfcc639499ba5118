"""`raytrain history` on runs that were written without a cluster."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from devtools.written_runs import Raytrain, write_run
from plugin_core.cli.history import SHOWN_ROWS
from plugin_core.runs.directory import RunDir
from plugin_core.runs.journal import JournalWriter

EVIL = "\x1b]0;owned\x07\x1b[31m[red]x[/red]\nnext"


def written(storage: str, entries: list[dict[str, Any]]) -> RunDir:
    rundir = write_run(storage, "run", "training", reports=0)
    writer = JournalWriter(rundir, 1)
    for number, entry in enumerate(entries, start=1):
        writer.append({"report": number, "index": number, "checkpoint": None, **entry})
    writer.close()
    return rundir


def table(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines()]


def test_a_table_has_a_row_for_each_report(storage: str, raytrain: Raytrain) -> None:
    write_run(storage, "run", "training")
    code, out, err = raytrain("history", "run")
    assert (code, err) == (0, "")
    assert table(out) == [
        ["REPORT", "ATTEMPT", "CHECKPOINT", "epoch", "loss"],
        ["1", "1", "0", "1"],
        ["2", "1", "1", "0.5"],
        ["3", "1", "2", "0.333333"],
    ]


def test_reports_that_were_repeated_are_shown_if_asked_for(storage: str, raytrain: Raytrain) -> None:
    written(storage, [{"index": index, "metrics": {"loss": number}} for number, index in enumerate((1, 2, 2))])
    assert [row[:2] for row in table(raytrain("history", "run")[1])[1:]] == [["1", "1"], ["3", "2"]]
    all_rows = table(raytrain("history", "run", "--repeated")[1])
    assert [row[-2] for row in all_rows] == ["COUNTS", "true", "false", "true"]


def test_one_rank_and_one_metric_of_many(storage: str, raytrain: Raytrain) -> None:
    ranks = [{"loss": 1.0, "more": 1}, {"loss": 2.0, "more": 2}]
    name = "checkpoint_a001_000001"
    rundir = written(storage, [{"metrics": ranks[0], "ranks": ranks, "checkpoint": name}])
    assert len(table(raytrain("history", "run")[1])) == 3
    _, out, _ = raytrain("history", "run", "--rank", "1", "--metric", "loss")
    assert table(out) == [["REPORT", "ATTEMPT", "RANK", "CHECKPOINT", "loss"], ["1", "1", "1", name, "2"]]
    (row,) = json.loads(raytrain("history", "run", "--rank", "1", "--json")[1])
    assert (row["checkpoint"], row["loss"], row["rank"]) == (f"{rundir.uri}/{name}", 2.0, 1)
    code, _, err = raytrain("history", "run", "--metric", "los")
    assert code == 2
    assert "metrics: got 'los', which no report has; expected one of 'loss', 'more'" in err


def test_a_long_table_is_thinned_and_json_and_csv_have_all(storage: str, raytrain: Raytrain) -> None:
    written(storage, [{"metrics": {f"m{number}": 1 for number in range(20)} | {"n": n}} for n in range(2500)])
    _, out, err = raytrain("history", "run")
    rows = table(out)
    assert len(rows) <= SHOWN_ROWS + 2
    assert rows[-1][0] == "2500"
    assert "every 13th of 2500 rows, and the last; --json and --csv print all" in err
    assert "12 of 21 metrics; --metric NAME shows another" in err
    data = json.loads(raytrain("history", "run", "--json")[1])
    assert [row["n"] for row in data] == list(range(2500))
    printed = list(csv.DictReader(io.StringIO(raytrain("history", "run", "--csv")[1])))
    assert [int(row["n"]) for row in printed] == list(range(2500))


def test_a_run_without_reports_prints_nothing(storage: str, raytrain: Raytrain) -> None:
    write_run(storage, "run", "waiting")
    code, out, err = raytrain("history", "run")
    assert (code, out) == (0, "")
    assert "no reports yet in" in err
    assert json.loads(raytrain("history", "run", "--json")[1]) == []
    assert raytrain("history", "run", "--csv")[1] == "report,index,attempt,rank,time,checkpoint\n"


def test_no_terminal_obeys_a_metric(storage: str, raytrain: Raytrain) -> None:
    written(storage, [{"metrics": {EVIL: EVIL, "list": [EVIL], "inf": float("inf"), "nan": float("nan")}}])
    for form in ([], ["--json"], ["--csv"]):
        code, out, err = raytrain("history", "run", *form)
        assert code == 0
        assert "\x1b" not in out + err
        assert "\x07" not in out + err
    (row,) = json.loads(raytrain("history", "run", "--json")[1])
    assert (row[EVIL], row["inf"], row["nan"]) == (EVIL, None, None)
    _, out, _ = raytrain("history", "run")
    assert out.splitlines()[0].split() == ["REPORT", "ATTEMPT", "CHECKPOINT", "[red]x[/red]", "next", "list", "inf", "nan"]
    header, line = csv.reader(io.StringIO(raytrain("history", "run", "--csv")[1]))
    assert (header[6], line[6]) == ("[red]x[/red] next",) * 2
    code, _, err = raytrain("history", "run", "--metric", "\x1b[31m")
    assert code == 2
    assert "\x1b" not in err


def test_a_picture_is_written_here_or_where_asked(storage: str, raytrain: Raytrain, tmp_path: Path) -> None:
    write_run(storage, "run", "training")
    code, out, _ = raytrain("history", "run", "--plot", "loss")
    assert (code, out) == (0, "run.png\n")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    code, out, _ = raytrain("history", "run", "--plot", "loss", "--plot", "epoch", "--output", "x.png", "--json")
    assert (code, json.loads(out)) == (0, {"plot": "x.png"})
    assert (tmp_path / "x.png").exists()
    code, _, err = raytrain("history", "run", "--plot", "loss", "--output", "no/such/folder.png")
    assert code == 11
    assert "--output: no/such/folder.png cannot be written: No such file or directory" in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--csv", "--json"], "--csv: got it with --json; expected one of them"),
        (["--csv", "--plot", "loss"], "--csv: got it with --plot, which draws rank 0's METRIC; expected one of them"),
        (["--rank", "0", "--plot", "loss"], "--rank: got it with --plot"),
        (["--repeated", "--plot", "loss"], "--repeated: got it with --plot"),
        (["--metric", "epoch", "--plot", "loss"], "--metric: got it with --plot"),
        (["--output", "x.png"], "--output: got 'x.png' without --plot; expected both"),
        (["--plot", "los"], "metrics: got 'los', which no report has; expected one of 'epoch', 'loss'"),
        (["--rank", "2"], "rank: got 2 of "),
    ],
)
def test_what_does_not_go_together_is_refused(storage: str, raytrain: Raytrain, options: list[str], words: str) -> None:
    write_run(storage, "run", "training")
    code, out, err = raytrain("history", "run", *options)
    assert (code, out) == (2, "")
    assert words in " ".join(err.split())
