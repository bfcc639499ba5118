"""How commands print: plain text without terminal escapes, or JSON."""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from plugin_core.errors.plain_text import plain
from plugin_core.specs.json_values import json_safe

err = Console(stderr=True, highlight=False)

Json = Annotated[bool, typer.Option("--json", help="print JSON instead of text")]

#: Characters of the longest bar of a table.
_BAR = 40
#: Characters of a line that goes into a pipe or file: as many as a row needs.
_WIDE = 2000


def console() -> Console:
    """Standard output; its lines are cut to the terminal's width only if it is a terminal."""
    wide = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(highlight=False, width=_WIDE if wide else None)


def cell(value: str) -> Text:
    """Literal text of one line: rich would parse `[…]` in a str as markup."""
    return Text(" ".join(plain(value).split("\n")))


def print_json(data: Any, indent: int | None = 1, end: str = "\n") -> None:
    """ASCII, so that no character in it can control a terminal; NaN is null."""
    print(json.dumps(json_safe(data), indent=indent, allow_nan=False), end=end)


def answer(text: str, data: Any, as_json: bool) -> None:
    """Print one answer, in the form that was asked for."""
    if as_json:
        print_json(data)
    else:
        print(text)


def bar(part: float, longest: float) -> Text:
    """A cell that shows a part as long as it is beside the longest one."""
    return cell("█" * round(_BAR * part / longest))


def rows(*columns: str | Text) -> Table:
    """A table without rules, for people and for `grep`. Text that others wrote must come as a `cell`."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
