"""`raytrain run|cancel`, and what follows a run: commands that need a run's cluster."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plugin_core.cli.clusters import Address, Token, cluster_at
from plugin_core.cli.output import Json, answer, err, print_json
from plugin_core.cli.places import RunArgument, Storage, open_run

if TYPE_CHECKING:
    from plugin_core.specs import StepSpec


def run(
    spec_file: Annotated[Path, typer.Argument(help="the step as YAML or JSON")],
    name: Annotated[str | None, typer.Option(help="the run's name (default: the spec's, then the file's)")] = None,
    storage: Annotated[str | None, typer.Option(help="storage path or URI, if the spec sets none")] = None,
    address: Address = None,
    token: Token = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress, no log")] = False,
) -> None:
    """Run a step to its result, printed as JSON. Under a name that already exists: attach to the run, resume it, or return
    its result. Ctrl-C detaches; the run goes on."""
    from plugin_core.runs.directory import run_name
    from plugin_core.specs import load_spec

    spec = load_spec(spec_file)
    follow(spec.with_name(name or spec.run_config.name or run_name(spec_file.stem), storage), address, token, quiet)


def follow(spec: StepSpec, address: str | None, token: str | None, quiet: bool) -> None:
    """Run a step to its result and print that; exit with 130 after Ctrl-C."""
    from plugin_core.runs.directory import RunDir
    from plugin_core.supervisor.supervisor import run as run_spec

    try:
        result = run_spec(spec, cluster_at(address, token), progress=not quiet)
    except KeyboardInterrupt:
        uri = RunDir.of(spec).uri
        again = f"detached; the run continues. Run this again to reattach; `raytrain cancel {shlex.quote(uri)}` stops it"
        err.print(again, markup=False, soft_wrap=True)
        sys.exit(130)
    print_json(result.to_json())


def cancel(
    run: RunArgument, storage: Storage = None, address: Address = None, token: Token = None, as_json: Json = False
) -> None:
    """Cancel a run and wait until its job has ended; safe to repeat."""
    from plugin_core.supervisor.cancel import acancel
    from plugin_core.supervisor.supervisor import run_sync

    rundir = open_run(run, storage)
    rundir.read_record()
    became = run_sync(acancel(rundir, cluster_at(address, token)))
    answer(became, {"run": rundir.uri, "state": became}, as_json)
