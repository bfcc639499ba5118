"""`raytrain data`: what the datasets of a step hold, and how its workers share them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plugin_core.cli.output import Json, cell, console, err, print_json, rows
from plugin_core.errors.plain_text import plain

if TYPE_CHECKING:
    from plugin_core.supervisor.dataset_views import DatasetView, Share

#: Columns of a dataset in the table, and characters of a value in it; JSON has all.
COLUMNS, CHARACTERS = 100, 40


def data(
    spec_file: Annotated[Path, typer.Argument(help="the step as YAML or JSON")],
    first: Annotated[int, typer.Option("--rows", help="how many of the first rows to show", min=0, max=100)] = 3,
    count: Annotated[bool, typer.Option("--count", help="count the rows, even if all of the data must be read")] = False,
    as_json: Json = False,
) -> None:
    """Show the datasets of a step as read from here: schema, rows, and how its workers share them. Submits nothing."""
    from plugin_core.specs import load_spec
    from plugin_core.supervisor.dataset_views import dataset_views

    views = dataset_views(load_spec(spec_file), first, count, lambda line: err.print(plain(line), markup=False))
    if as_json:
        print_json([asdict(view) for view in views])
        return
    found = False
    for view in views:
        if found:
            print()
        found = True
        _show(view)
    if not found:
        err.print("the step has no dataset")


def _show(view: DatasetView) -> None:
    source = ", ".join(view.source[:3]) + (f", … ({len(view.source)} paths)" if len(view.source) > 3 else "")
    lines = [f"{view.dataset}: {source} ({view.format}), {_rows(view.rows)}"]
    if view.split is not None:
        lines.append(_split(view.split))
    if view.workers is not None:
        lines.append(_workers(view))
    if view.shuffle_seed is not None:
        lines.append(f"shuffled with seed {view.shuffle_seed}; the rows below are not")
    for line in lines:
        print(cell(line).plain)
    table = rows("COLUMN", "TYPE", *(f"ROW {number}" for number in range(1, len(view.first) + 1)))
    for name, kind in list(view.schema.items())[:COLUMNS]:
        values = [_short(row.get(name)) for row in view.first]
        table.add_row(*(cell(text) for text in (name, kind, *values)))
    if view.schema:
        console().print(table)
    if len(view.schema) > COLUMNS:
        err.print(f"{COLUMNS} of {len(view.schema)} columns; --json prints all")


def _rows(number: int | None) -> str:
    return "not counted (--count counts)" if number is None else f"{number:,} row{'s' * (number != 1)}"


def _split(split: Share) -> str:
    about = "" if split.exact or split.rows is None else "about "
    return f"split: the {split.part} part of test_size {split.test_size:g}, {about}{_rows(split.rows)}"


def _workers(view: DatasetView) -> str:
    assert view.workers is not None
    number = " to ".join(map(str, view.workers))
    workers = f"{number} worker{'s' * (view.workers != [1])}"
    if view.shard is None:
        return f"workers: {workers}; data_config decides what each gets"
    if not view.shard:
        return f"workers: {workers}, each gets all rows"
    if view.rows_per_worker is None:
        return f"workers: {workers}, each gets the same number of rows"
    about = "about " if view.split is not None and not view.split.exact else ""
    each = " to ".join(f"{rows:,}" for rows in view.rows_per_worker)
    return f"workers: {workers}, each gets {about}{each} row{'s' * (view.rows_per_worker != [1])}"


def _short(value: Any) -> str:
    text = "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= CHARACTERS else f"{text[:CHARACTERS]}…"
