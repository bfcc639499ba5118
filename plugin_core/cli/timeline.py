"""`raytrain timeline`: where the time of a run's start went."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from plugin_core.cli.output import Json, bar, cell, console, err, print_json, rows
from plugin_core.cli.places import RunArgument, Storage, attempt_of, open_run


def timeline(
    run: RunArgument,
    attempt: Annotated[int | None, typer.Option(help="which attempt (default: the latest)", min=1)] = None,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Show where the time of a run's start went: from the driver's process to the first report."""
    from plugin_core.runs import timeline as runs

    rundir = open_run(run, storage)
    number = attempt_of(rundir, attempt)
    parts = runs.timeline(rundir, number)
    if as_json:
        print_json({"attempt": number, "parts": [asdict(part) for part in parts]})
        return
    if not parts:
        err.print(f"attempt {number} of {rundir.uri} recorded no times", markup=False, soft_wrap=True)
        return
    longest = max((part.seconds or 0.0 for part in parts), default=0.0) or 1.0
    table = rows("SECONDS", "", f"ATTEMPT {number}")
    for part in parts:
        took = "so far" if part.seconds is None else f"{part.seconds:.1f}"
        table.add_row(took, bar(part.seconds or 0.0, longest), cell(part.what))
    table.add_row(f"{sum(part.seconds or 0.0 for part in parts):.1f}", "", "together")
    console().print(table)
