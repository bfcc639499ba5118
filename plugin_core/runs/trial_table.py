"""The table of a search's trials for people: the best first, as rows and as Markdown."""

from __future__ import annotations

from typing import Any

from plugin_core.errors.plain_text import markdown_text
from plugin_core.specs import TuneSpec
from plugin_core.specs.functions import is_by_value
from plugin_core.specs.json_values import flat, is_number

#: The most rows, and the most values of a config in a row; the table as data has them all.
ROWS, VALUES = 200, 20


def best_first(rows: list[dict[str, Any]], spec: TuneSpec) -> list[dict[str, Any]]:
    """The rows ordered by the metric; those without one come last."""
    scored = [row for row in rows if row.get("status") != "failed" and is_number(row.get(spec.metric))]
    others = [row for row in rows if row.get("status") == "failed" or not is_number(row.get(spec.metric))]
    return [*sorted(scored, key=lambda row: row[spec.metric], reverse=spec.mode == "max"), *others]


def shown_rows(rows: list[dict[str, Any]], spec: TuneSpec) -> list[dict[str, Any]]:
    """The best `ROWS` rows: the trial, how it ended, its metric, its reports, and its values from the search space."""
    return [
        {
            "trial": str(row.get("run", "")).rpartition("/")[2],
            "status": row.get("status"),
            spec.metric: row.get(spec.metric),
            "reports": row.get("reports"),
            **_values(row.get("config")),
            **({"error": row["error"]} if row.get("error") else {}),
        }
        for row in best_first(rows, spec)[:ROWS]
    ]


def as_markdown(rows: list[dict[str, Any]], spec: TuneSpec) -> str:
    """The best rows as a Markdown table. All text is escaped, since a config may contain anything."""
    shown = shown_rows(rows, spec)
    names = list(dict.fromkeys(name for row in shown for name in row))
    lines = [names, ["---"] * len(names), *([_cell(row.get(name)) for name in names] for row in shown)]
    lines[0] = [markdown_text(name) for name in names]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    left = len(rows) - len(shown)
    return f"{table}\n\n{left:,} more trials are in the table as data." if left > 0 else table


def _values(config: Any) -> dict[str, Any]:
    values = flat(config) if isinstance(config, dict) and config else {}
    return {name: _named(value) for name, value in list(values.items())[:VALUES]}


def _named(value: Any) -> Any:
    """A value, with a function reduced to its name."""
    return value.partition("#")[0].partition(":")[2] if isinstance(value, str) and is_by_value(value) else value


def _cell(value: Any) -> str:
    return "" if value is None else markdown_text(f"{value:.6g}" if isinstance(value, float) else value)
