"""`raytrain history`: every report of a run, as a table, JSON or CSV, or as a picture."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plugin_core.cli.output import Json, answer, cell, console, err, print_json, rows
from plugin_core.cli.places import RunArgument, Storage, open_run
from plugin_core.errors import SpecError, StorageError
from plugin_core.errors.plain_text import plain
from plugin_core.specs.json_values import json_safe

if TYPE_CHECKING:
    import pandas

    from plugin_core.runs.directory import RunDir

#: Most reports and metrics of the table, and characters of a value in it.
SHOWN_ROWS, SHOWN_METRICS, CHARACTERS = 200, 12, 60
#: Rows that are turned into text at a time.
CHUNK = 1000


def history(
    run: RunArgument,
    metric: Annotated[list[str] | None, typer.Option(help="only this metric; may be repeated", show_default=False)] = None,
    plot: Annotated[
        list[str] | None,
        typer.Option(metavar="METRIC", help="draw this metric as PNG; may be repeated", show_default=False),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="where --plot writes (default: RUN.png, here)")] = None,
    rank: Annotated[int | None, typer.Option(help="only this worker's reports", min=0)] = None,
    repeated: Annotated[bool, typer.Option("--repeated", help="also reports that were repeated after a kill")] = False,
    storage: Storage = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="print CSV instead of a table")] = False,
    as_json: Json = False,
) -> None:
    """Print every report of a run so far, as if nothing had been killed. A long table is thinned; JSON and CSV have all."""
    from plugin_core.runs.report_frame import history as read

    if as_csv and as_json:
        raise SpecError("--csv: got it with --json; expected one of them")
    table = {"--csv": as_csv, "--metric": metric, "--rank": rank is not None, "--repeated": repeated}
    for option, given in table.items():
        if plot and given:
            raise SpecError(f"{option}: got it with --plot, which draws rank 0's METRIC; expected one of them")
    if output is not None and not plot:
        raise SpecError(f"--output: got {str(output)!r} without --plot; expected both")
    rundir = open_run(run, storage)
    if plot:
        _draw(rundir, plot, output or Path(f"{rundir.name}.png"), as_json)
        return
    frame = read(rundir.uri, metric or None, rank=rank, repeated=repeated)
    if as_json:
        _print_json(frame)
    elif as_csv:
        _print_csv(frame)
    elif len(frame):
        _print_table(frame)
    else:
        err.print(f"no reports yet in {plain(rundir.uri)}", markup=False, soft_wrap=True)


def _draw(rundir: RunDir, metrics: list[str], file: Path, as_json: bool) -> None:
    from plugin_core.runs.plots import plot, png

    picture = png(plot(rundir.uri, *metrics))
    try:
        file.write_bytes(picture)
    except OSError as exc:
        raise StorageError(f"--output: {file} cannot be written: {exc.strerror}") from exc
    answer(plain(str(file)), {"plot": str(file)}, as_json)


def _records(frame: pandas.DataFrame) -> Iterator[dict[str, Any]]:
    """The rows as JSON data; NaN is None."""
    for start in range(0, len(frame), CHUNK):
        for record in frame.iloc[start : start + CHUNK].to_dict("records"):
            yield json_safe(record)


def _print_json(frame: pandas.DataFrame) -> None:
    """A list with a line for each row, written as it is made."""
    print("[", end="")
    for number, record in enumerate(_records(frame)):
        print("," if number else "")
        print_json(record, indent=None, end="")
    print("\n]" if len(frame) else "]")


def _print_csv(frame: pandas.DataFrame) -> None:
    import csv

    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow([_line(name) for name in frame.columns])
    for record in _records(frame):
        table.writerow([_line(value) if isinstance(value, str | list | dict) else value for value in record.values()])


def _print_table(frame: pandas.DataFrame) -> None:
    fixed = [name for name in ("report", "index", "attempt", "rank", "checkpoint", "counts") if name in frame]
    if (frame["report"] == frame["index"]).all():
        fixed.remove("index")
    if not frame["rank"].any():
        fixed.remove("rank")
    metrics = [name for name in frame.columns if name not in (*fixed, "report", "index", "rank", "time")]
    stride = max(1, -(-len(frame) // SHOWN_ROWS))
    numbers = sorted({*range(0, len(frame), stride), len(frame) - 1})
    shown = metrics[:SHOWN_METRICS]
    table = rows(*(name.upper() for name in fixed), *(cell(_short(name)) for name in shown))
    for record in _records(frame.iloc[numbers][[*fixed, *shown]]):
        checkpoint = record["checkpoint"]
        record["checkpoint"] = checkpoint.partition("?")[0].rpartition("/")[2] if checkpoint else ""
        table.add_row(*(cell(_short(value)) for value in record.values()))
    console().print(table)
    if stride > 1:
        err.print(f"every {stride}th of {len(frame)} rows, and the last; --json and --csv print all")
    if len(metrics) > len(shown):
        err.print(f"{len(shown)} of {len(metrics)} metrics; --metric NAME shows another")


def _line(value: Any) -> str:
    """Text on one line, without terminal escapes; any other value as JSON."""
    return " ".join(plain(value).split("\n")) if isinstance(value, str) else json.dumps(value)


def _short(value: Any) -> str:
    if value is None:
        return ""
    text = f"{value:.6g}" if isinstance(value, float) else _line(value)
    return text if len(text) <= CHARACTERS else f"{text[:CHARACTERS]}…"
