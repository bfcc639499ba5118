"""`raytrain ls|top|status|result`: what runs do, from their storage alone."""

from __future__ import annotations

import json
import shlex
import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from plugin_core.cli.output import Json, cell, console, err, print_json, rows
from plugin_core.cli.places import RunArgument, Storage, open_run, open_storage
from plugin_core.errors import SpecError, StorageError
from plugin_core.errors.plain_text import plain

if TYPE_CHECKING:
    from plugin_core.runs.overview import Overview
    from plugin_core.storage.location import Location

#: Seconds after which `top` reads the runs again that were over when it read them last: each may have been resumed.
ALL_S = 60.0
NOTE_CHARACTERS = 100

StorageArgument = Annotated[
    str | None, typer.Argument(help="path or URI of the storage that holds the runs (default: $RAY_STORAGE, ~/ray_results)")
]


def ls(storage: StorageArgument = None, as_json: Json = False) -> None:
    """List the runs of a storage, the newest first: kind, state, progress, attempt and age."""
    from plugin_core.runs.overview import overviews

    place = open_storage(storage)
    found = overviews(place)
    if as_json:
        print_json([_data(run) for run in found])
    elif found:
        console().print(_table(found))
    else:
        err.print(f"no runs in {plain(place.uri)}", markup=False, soft_wrap=True)


def top(
    storage: StorageArgument = None,
    every_s: Annotated[float, typer.Option("--every", help="seconds between two looks", min=0.5, max=3600)] = 3.0,
    once: Annotated[bool, typer.Option("--once", help="look once and exit")] = False,
    as_json: Json = False,
) -> None:
    """Follow the active runs of a storage, and those that end meanwhile, until Ctrl-C. With --json, one line per look."""
    place = open_storage(storage)
    watched = _Watched(place)
    screen = console()
    try:
        watched.look()
        if as_json or once or not screen.is_terminal:
            while True:
                if as_json:
                    print_json({"time": time.time(), "runs": [_data(run) for run in watched.shown()]}, indent=None)
                else:
                    screen.print(watched.view())
                if once:
                    return
                sys.stdout.flush()
                time.sleep(every_s)
                watched.look_again()
        with Live(watched.view(), console=screen, auto_refresh=False, screen=True) as live:
            while True:
                time.sleep(every_s)
                watched.look_again()
                live.update(watched.view(), refresh=True)
    except KeyboardInterrupt:
        if screen.is_terminal and not as_json:
            screen.print(watched.view())


class _Watched:
    """The runs that `top` shows: those that are active now, or were so at any time since it first looked."""

    def __init__(self, storage: Location):
        self._storage = storage
        self._found: dict[str, Overview] = {}
        self._names: set[str] = set()
        self._read_all = 0.0
        self._problem = ""

    def look(self) -> None:
        """Raises StorageError if the storage cannot be listed."""
        from plugin_core.runs.overview import overviews

        now = time.monotonic()
        every = now - self._read_all > ALL_S
        known = {name: run for name, run in self._found.items() if name not in self._names and not run.active}
        self._found = {run.name: run for run in overviews(self._storage, {} if every else known)}
        self._names |= {name for name, run in self._found.items() if run.active}
        self._read_all = now if every else self._read_all
        self._problem = ""

    def look_again(self) -> None:
        """`look`, which keeps what it has while the storage does not answer."""
        try:
            self.look()
        except StorageError as exc:
            self._problem = exc.message

    def shown(self) -> list[Overview]:
        return [run for name, run in self._found.items() if name in self._names]

    def view(self) -> Group:
        found = self.shown()
        active = sum(run.active for run in found)
        words = f"{self._storage.uri}: {active} active, {len(self._found) - active} others; Ctrl-C leaves"
        return Group(cell(words), _table(found), *([cell(self._problem)] if self._problem else []))


def _table(found: list[Overview]) -> Table:
    table, now = rows("RUN", "KIND", "STATE", "PROGRESS", "ATTEMPT", "AGE", ""), time.time()
    for run in found:
        note = run.message.strip().split("\n")[0]
        state = f"{run.state} ({run.outcome})" if run.state == "failed" else run.state
        age = _age(now - run.began) if run.began else ""
        cells = (run.name, run.kind, state, _progress(run), str(run.attempt or ""), age, note)
        table.add_row(*(cell(_short(value)) for value in cells))
    return table


def _short(value: str) -> str:
    """Everything but the name comes from the run's files, and may be long."""
    return value if len(value) <= NOTE_CHARACTERS else f"{value[:NOTE_CHARACTERS]}…"


def _data(run: Overview) -> dict[str, Any]:
    return {**asdict(run), "active": run.active}


def _progress(run: Overview) -> str:
    words = [f"{name} {value:g}" for name, value in run.counters.items()]
    return ", ".join([f"{run.reports} reports"] * bool(run.reports) + words)


def _age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def status(run: RunArgument, storage: Storage = None, as_json: Json = False) -> None:
    """Show what a run is doing, from its directory alone."""
    from plugin_core.runs.history import History
    from plugin_core.runs.overview import overview

    rundir = open_run(run, storage)
    record, intent, history = rundir.read_record(), rundir.intent(), History.read(rundir)
    attempts = []
    for attempt in rundir.receipts():
        receipt, end, beat = rundir.receipt(attempt), rundir.end(attempt), rundir.heartbeat(attempt)
        said = {"outcome": end.outcome, "message": end.message} if end else {"phase": beat.phase if beat else "submitted"}
        attempts.append({"attempt": attempt, "job": receipt.submission_id if receipt else "?", **said})
    result = rundir.result() is not None
    if as_json:
        known = {"cancelled_through": intent.cancel_through, "attempts": attempts, "metrics": history.metrics}
        known |= {"last_checkpoint": history.last_checkpoint, "result": result}
        print_json({**_data(overview(rundir)), "reports": history.reports, **known})
        return
    table = Table("", escape(plain(rundir.uri)), show_header=True)
    table.add_row("kind", cell(record["kind"]))
    if intent.cancel_through:
        table.add_row("cancelled", f"attempts up to {intent.cancel_through}")
    for told in attempts:
        state = " ".join(str(told[name]) for name in ("outcome", "message", "phase") if told.get(name))
        table.add_row(f"attempt {told['attempt']}", cell(f"{state} ({told['job']})"))
    table.add_row("reports", str(history.reports))
    if history.reports:
        table.add_row("last report", cell(json.dumps(history.metrics)))
    table.add_row("last checkpoint", cell(history.last_checkpoint or "none"))
    table.add_row("result", "yes" if result else "no")
    console().print(table)


def result(run: RunArgument, storage: Storage = None, as_json: Json = False) -> None:
    """Print the result of a finished run as JSON. For a run that failed or was cancelled, print its error, and exit with
    that error's code."""
    from plugin_core.runs.overview import failure, overview

    rundir = open_run(run, storage)
    rundir.read_record()
    found = rundir.result()
    if found is not None:
        print_json(found.to_json())
        return
    error = failure(rundir)
    if error is None:
        state = overview(rundir).state
        raise SpecError(f"run: got {rundir.uri!r}, which has no result yet ({plain(state)}); expected a finished run")
    if as_json:
        named = {"error": type(error).__name__, "outcome": error.outcome, "exit_code": error.exit_code}
        print_json({**named, "message": error.message, "details": error.details})
        sys.exit(error.exit_code)
    this = shlex.quote(plain(rundir.uri))
    err.print(f"`raytrain status {this}` shows its attempts, `raytrain logs {this}` its log", markup=False, soft_wrap=True)
    raise error
