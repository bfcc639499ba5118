"""`raytrain checkpoints|prune|track`: what runs keep, and what may go."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.table import Table

from plugin_core.cli.output import Json, cell, console, err, print_json
from plugin_core.cli.places import RunArgument, Storage, open_run, open_storage
from plugin_core.errors import SpecError
from plugin_core.errors.plain_text import plain

MOST_DAYS = 36_500


def checkpoints(run: RunArgument, storage: Storage = None, as_json: Json = False) -> None:
    """List a run's checkpoints on storage, with the metrics they were reported with."""
    from dataclasses import asdict

    from plugin_core.runs.retention import checkpoints as of_run

    rundir = open_run(run, storage)
    rundir.read_record()
    found = of_run(rundir)
    if as_json:
        print_json([asdict(entry) for entry in found])
        return
    table = Table("checkpoint", "metrics", "state", "kept for")
    for entry in found:
        row = (entry.name, json.dumps(entry.metrics), entry.state, ", ".join(entry.kept_for))
        table.add_row(*map(cell, row))
    console().print(table)


def prune(
    storage: Annotated[str, typer.Argument(help="the storage path or URI that holds the runs")],
    older_than_days: Annotated[float, typer.Option(help="skip runs that ended fewer days ago than this")] = 30.0,
    also_results: Annotated[bool, typer.Option("--also-results", help="include checkpoints named by results")] = False,
    delete: Annotated[bool, typer.Option("--delete", help="delete them (default: only list them)")] = False,
    as_json: Json = False,
) -> None:
    """List or delete unneeded checkpoints of old runs; never those of a run that may be alive, never pinned ones."""
    from datetime import timedelta

    from plugin_core.runs.retention import abort_uploads, prunable
    from plugin_core.runs.retention import prune as prune_one

    if not 0 <= older_than_days <= MOST_DAYS:
        raise SpecError(f"--older-than-days: got {older_than_days:g}; expected a number from 0 to {MOST_DAYS:,}")
    place, age = open_storage(storage), timedelta(days=older_than_days)
    found = []
    for rundir, name in prunable(place, age, also_results):
        if not delete or prune_one(rundir, name):
            found.append(rundir.location.child(name).uri)
            if not as_json:
                print(plain(found[-1]))
    aborted = abort_uploads(place, age) if delete else 0
    if as_json:
        print_json({"checkpoints": found, "deleted": delete, "aborted_uploads": aborted})
        return
    err.print(f"{len(found)} checkpoints {'deleted' if delete else 'can be deleted; pass --delete to delete them'}")
    if aborted:
        err.print(f"{aborted} unfinished uploads of killed processes aborted")


def track(run: RunArgument, storage: Storage = None, as_json: Json = False) -> None:
    """Log a finished run to its trackers again, to add what they missed while they were unreachable."""
    from plugin_core.tracking.replay import replay

    logged = replay(open_run(run, storage))
    if as_json:
        print_json(logged)
        return
    for uri, links in logged.items():
        print(plain(uri), *(plain(f"{tracker}: {link}") for tracker, link in links.items()), sep="\n  ")
