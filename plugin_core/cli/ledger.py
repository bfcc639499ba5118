"""`raytrain ledger`: where the time of a run went, or of all runs of a storage."""

from __future__ import annotations

import re
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plugin_core.cli.output import Json, bar, cell, console, err, print_json, rows
from plugin_core.cli.places import Storage, complete_run, is_storage, open_run, open_storage
from plugin_core.errors import SpecError
from plugin_core.errors.plain_text import plain
from plugin_core.errors.shown import shown

if TYPE_CHECKING:
    from plugin_core.runs.ledger import Ledger
    from plugin_core.storage.location import Location

_UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


def ledger(
    place: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN|STORAGE]", help="a run, or a storage for all of its runs", autocompletion=complete_run
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="of a storage: only runs active this recently: 90m, 12h, 7d, 4w")
    ] = None,
    price: Annotated[
        float | None, typer.Option(help="price of a worker per hour, to show what the lost time cost", min=0)
    ] = None,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Show where the time went: useful, repeated after a failure, recovering, checkpointing, queued, idle."""
    if place is not None and since is None and (storage is not None or not is_storage(place)):
        _of_run(place, storage, price, as_json)
    else:
        _of_storage(open_storage(place or storage), since, price, as_json)


def _of_run(run: str, storage: str | None, price: float | None, as_json: bool) -> None:
    from plugin_core.runs.ledger import KINDS
    from plugin_core.runs.ledgers import ledger_of

    found = ledger_of(open_run(run, storage).outermost)
    if as_json:
        print_json(_data(found, price))
        return
    longest = max(found.seconds.values(), default=0.0) or 1.0
    table = rows("SECONDS", "SHARE", "", "")
    for kind in KINDS:
        if took := found.seconds.get(kind, 0.0):
            table.add_row(f"{took:.1f}", f"{found.share_of(kind):.1%}", bar(took, longest), kind)
    attempts = f"{found.attempt} attempt{'s' * (found.attempt != 1)}"
    table.add_row(f"{found.total:.1f}", "", "", f"together, in {attempts}")
    console().print(table)
    print(_lost(found, price))


def _of_storage(place: Location, since: str | None, price: float | None, as_json: bool) -> None:
    from plugin_core.runs.ledger import Ledger
    from plugin_core.runs.ledgers import ledgers

    found, unread = ledgers(place, 0.0 if since is None else time.time() - _seconds(since))
    for name, why in unread.items():
        err.print(f"{plain(name)}: {plain(why)}", markup=False, soft_wrap=True)
    whole = Ledger.together(found.values())
    if as_json:
        print_json({"runs": {name: _data(one, price) for name, one in found.items()}, "together": _data(whole, price)})
        return
    if not found:
        err.print(f"no runs in {plain(place.uri)}", markup=False, soft_wrap=True)
        return
    table = rows("RUN", "HOURS", "USEFUL", "REPEATED", "RECOVERING", "CHECKPOINTING", "LOST WORKER HOURS")
    for name, one in sorted(found.items(), key=lambda item: -item[1].lost_worker_s):
        table.add_row(cell(name), *_cells(one))
    table.add_row("together", *_cells(whole))
    console().print(table)
    print(_lost(whole, price))


def _cells(ledger: Ledger) -> list[str]:
    shares = (f"{ledger.share_of(kind):.1%}" for kind in ("useful", "repeated", "recovering", "checkpointing"))
    return [f"{ledger.total / 3600:.2f}", *shares, f"{ledger.lost_worker_s / 3600:.2f}"]


def _data(ledger: Ledger, price: float | None) -> dict[str, Any]:
    more = {"total": ledger.total, "useful_share": ledger.share_of("useful"), "lost_worker_s": ledger.lost_worker_s}
    costs = (
        {} if price is None else {"cost": price * ledger.worker_s / 3600, "lost_cost": price * ledger.lost_worker_s / 3600}
    )
    return {**asdict(ledger), **more, **costs}


def _lost(ledger: Ledger, price: float | None) -> str:
    said = f"effective training time {ledger.share_of('useful'):.1%}; {ledger.lost_worker_s / 3600:.2f} worker hours lost"
    if price is None:
        return said
    return f"{said}, which cost {price * ledger.lost_worker_s / 3600:.2f} of {price * ledger.worker_s / 3600:.2f}"


def _seconds(since: str) -> float:
    match = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)([mhdw])", since)
    if match is None:
        raise SpecError(f"--since: got {shown(since)}; expected a number and a unit, such as 90m, 12h, 7d or 4w")
    return float(match[1]) * _UNITS[match[2]]
