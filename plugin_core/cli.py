"""`raytrain`: run a step, inspect runs, manage the embedded cluster.

Exit codes: 0 success, 2 rejected before anything was submitted, otherwise the error class's own (`plugin_core.errors`).
Progress goes to stderr; the result goes to stdout as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from plugin_core.clusters.base import Cluster, LocalCluster, RayCluster
from plugin_core.errors import RayTrainWorkflowsError
from plugin_core.errors.plain_text import plain

# locals may hold a token
app = typer.Typer(
    help="Distributed training as a workflow step.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
cluster_app = typer.Typer(help="The embedded local Ray cluster.", no_args_is_help=True)
app.add_typer(cluster_app, name="cluster")
err = Console(stderr=True, highlight=False)

Run = Annotated[str, typer.Argument(help="URI or path of a run directory")]
Address = Annotated[str | None, typer.Option(help="URL of a Ray dashboard (default: the embedded local cluster)")]
Token = Annotated[str | None, typer.Option(help="Ray auth token", envvar="RAY_AUTH_TOKEN", show_envvar=True)]


def main() -> None:
    # "mymodule:function" in a spec may be in the working directory; it comes last, so that no file here shadows a package
    here = os.getcwd()
    sys.path[:] = [*(entry for entry in sys.path if entry not in ("", here)), here]
    try:
        app()
    except RayTrainWorkflowsError as exc:
        if exc.details:
            err.print(plain(exc.details), markup=False)
        err.print(f"{type(exc).__name__}: {plain(exc.message)}", markup=False, soft_wrap=True)
        sys.exit(exc.exit_code)


def _cell(value: str) -> Text:
    """Literal table text: rich would parse `[…]` in a str as markup."""
    return Text(plain(value))


def _cluster(address: str | None, token: str | None) -> Cluster:
    return RayCluster(address, token) if address else LocalCluster()


@app.command()
def run(
    spec_file: Annotated[Path, typer.Argument(help="the step as YAML or JSON")],
    name: Annotated[str | None, typer.Option(help="the run's name (default: the spec's, then the file's)")] = None,
    storage: Annotated[str | None, typer.Option(help="storage path or URI, if the spec sets none")] = None,
    address: Address = None,
    token: Token = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress, no log")] = False,
) -> None:
    """Run a step to its result. Under a name that already exists: attach to the run, resume it, or return its result."""
    from plugin_core.runs.directory import RunDir, run_name
    from plugin_core.specs import load_spec
    from plugin_core.supervisor.supervisor import Event
    from plugin_core.supervisor.supervisor import run as run_spec

    spec = load_spec(spec_file)
    spec = spec.with_name(name or spec.run_config.name or run_name(spec_file.stem), storage)

    def show(event: Event) -> None:
        if event.kind == "log":
            err.print(event.text, style="dim", markup=False, soft_wrap=True)
        else:
            err.print(f"• {event.text}", markup=False, soft_wrap=True)

    try:
        result = run_spec(spec, _cluster(address, token), None if quiet else show)
    except KeyboardInterrupt:
        uri = RunDir.of(spec).uri
        again = f"detached; the run continues. Run this again to reattach; `raytrain cancel {shlex.quote(uri)}` stops it"
        err.print(again, markup=False, soft_wrap=True)
        sys.exit(130)
    print(result.model_dump_json(indent=1))


@app.command()
def status(run: Run) -> None:
    """Show what a run is doing, from its directory alone."""
    from plugin_core.runs.directory import RunDir
    from plugin_core.runs.history import History

    rundir = RunDir.at(run)
    record = rundir.read_record()
    table = Table("", escape(plain(rundir.uri)), show_header=True)
    table.add_row("kind", _cell(record["kind"]))
    intent = rundir.intent()
    if intent.cancel_through:
        table.add_row("cancelled", f"attempts up to {intent.cancel_through}")
    for attempt in rundir.receipts():
        receipt, end, beat = rundir.receipt(attempt), rundir.end(attempt), rundir.heartbeat(attempt)
        state = f"{end.outcome} {end.message}".strip() if end else (f"{beat.phase}" if beat else "submitted")
        table.add_row(f"attempt {attempt}", _cell(f"{state} ({receipt.submission_id if receipt else '?'})"))
    history = History.read(rundir)
    table.add_row("reports", str(history.reports))
    if history.reports:
        table.add_row("last report", _cell(json.dumps(history.metrics)))
    table.add_row("last checkpoint", _cell(history.last_checkpoint or "none"))
    table.add_row("result", "yes" if rundir.result() is not None else "no")
    Console().print(table)


@app.command()
def checkpoints(run: Run) -> None:
    """List a run's checkpoints on storage, with the metrics they were reported with."""
    from plugin_core.runs.directory import RunDir
    from plugin_core.runs.retention import checkpoints as of_run

    rundir = RunDir.at(run)
    rundir.read_record()
    table = Table("checkpoint", "metrics", "state", "kept for")
    for entry in of_run(rundir):
        row = (entry.name, json.dumps(entry.metrics), entry.state, ", ".join(entry.kept_for))
        table.add_row(*map(_cell, row))
    Console().print(table)


@app.command()
def prune(
    storage: Annotated[str, typer.Argument(help="the storage path or URI that holds the runs")],
    older_than_days: Annotated[float, typer.Option(help="skip runs that ended fewer days ago than this")] = 30.0,
    also_results: Annotated[bool, typer.Option("--also-results", help="include checkpoints named by results")] = False,
    delete: Annotated[bool, typer.Option("--delete", help="delete them (default: only list them)")] = False,
) -> None:
    """List or delete unneeded checkpoints of old runs; never those of a run that may be alive, never pinned ones."""
    from datetime import timedelta

    from plugin_core.runs.retention import abort_uploads, prunable
    from plugin_core.runs.retention import prune as prune_one
    from plugin_core.storage.location import Location

    place, age, count = Location.of(storage), timedelta(days=older_than_days), 0
    for rundir, name in prunable(place, age, also_results):
        if not delete or prune_one(rundir, name):
            print(rundir.location.child(name).uri)
            count += 1
    err.print(f"{count} checkpoints {'deleted' if delete else 'can be deleted; pass --delete to delete them'}")
    if delete and (aborted := abort_uploads(place, age)):
        err.print(f"{aborted} unfinished uploads of killed processes aborted")


@app.command()
def result(run: Run) -> None:
    """Print the result of a finished run as JSON."""
    from plugin_core.errors import SpecError
    from plugin_core.runs.directory import RunDir

    rundir = RunDir.at(run)
    rundir.read_record()
    found = rundir.result()
    if found is None:
        raise SpecError(f"run: got {rundir.uri!r}, which has no result yet; expected a finished run")
    print(found.model_dump_json(indent=1))


@app.command()
def logs(run: Run, address: Address = None, token: Token = None) -> None:
    """Print the log of the run's latest job, if its cluster still has it."""
    from plugin_core.errors import SpecError
    from plugin_core.runs.directory import RunDir

    rundir = RunDir.at(run)
    receipt = rundir.receipt(rundir.latest())
    if receipt is None:
        raise SpecError(f"run: got {rundir.uri!r}, which has no attempt; expected a submitted run")
    _with_client(_cluster(address, token), lambda client: _print_log(client, receipt.submission_id))


async def _print_log(client: Any, submission_id: str) -> None:
    from plugin_core.supervisor.job_log import Text

    job = await client.job(submission_id)
    if job is None or not job.node_id:
        return
    stream, text = await client.open_log(job), Text()
    try:
        while data := await stream.read():
            print(plain(text.feed(data)), end="")
        print(plain(text.feed(b"")))
    finally:
        stream.close()


@app.command()
def cancel(run: Run, address: Address = None, token: Token = None) -> None:
    """Cancel a run and wait until its job has ended; safe to repeat."""
    from plugin_core.runs.directory import RunDir
    from plugin_core.supervisor.supervisor import acancel, run_sync

    rundir = RunDir.at(run)
    rundir.read_record()
    print(run_sync(acancel(rundir, _cluster(address, token))))


@app.command()
def track(run: Run) -> None:
    """Log a finished run to its trackers again, to add what they missed while they were unreachable."""
    from plugin_core.runs.directory import RunDir
    from plugin_core.tracking.replay import replay

    for uri, links in replay(RunDir.at(run)).items():
        print(uri, *(f"{tracker}: {link}" for tracker, link in links.items()), sep="\n  ")


@app.command()
def doctor(
    address: Address = None,
    token: Token = None,
    storage: Annotated[str | None, typer.Option(help="storage path or URI to probe")] = None,
) -> None:
    """Check this environment, a storage and a cluster; report problems and exit 2 if there are any."""
    from plugin_core.clusters.doctor import checks

    table, good = Table("check", "", "finding"), True
    for check in checks(_cluster(address, token), storage):
        good &= check.good
        table.add_row(check.name, "ok" if check.good else "[red]wrong[/red]", _cell(check.finding))
    Console().print(table)
    sys.exit(0 if good else 2)


@cluster_app.command()
def start(
    num_cpus: Annotated[int | None, typer.Option(help="CPUs to advertise (default: number of cores, at least 4)")] = None,
    num_gpus: Annotated[int | None, typer.Option(help="GPUs to advertise (default: what Ray detects)")] = None,
    idle_timeout_s: Annotated[float, typer.Option(help="stop after this many seconds without a job")] = 300.0,
) -> None:
    """Start the embedded cluster if it is not running, and print its address."""
    from plugin_core.clusters import local_head

    head = local_head.ensure(num_cpus, num_gpus, idle_timeout_s)
    print(f"running at {head.address} with {head.num_cpus} CPUs (keeper {head.keeper_pid})")


@cluster_app.command()
def stop() -> None:
    """Stop the embedded cluster and all its processes."""
    from plugin_core.clusters import local_head

    print("stopped" if local_head.stop() else "not running")


@cluster_app.command("status")
def cluster_status() -> None:
    """Show whether the embedded cluster is running, and its jobs."""
    from plugin_core.clusters import local_head

    head = local_head.current()
    if head is None:
        print("not running")
        return
    print(f"running at {head.address} with {head.num_cpus} CPUs (keeper {head.keeper_pid})")
    for job in _with_client(RayCluster(head.address, head.token), lambda client: client.jobs()):
        print(f"{job.submission_id} {job.status} {(job.metadata or {}).get('run', '')}")


def _with_client(cluster: Cluster, ask: Callable[..., Any]) -> Any:
    async def work() -> Any:
        async with await cluster.connect() as client:
            return await ask(client)

    return asyncio.run(work())


if __name__ == "__main__":
    main()
