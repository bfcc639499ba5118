"""`raytrain job -- COMMAND`: a command as a step."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from plugin_core.cli.clusters import Address, Token
from plugin_core.cli.places import Storage
from plugin_core.cli.steps import follow


def job(
    command: Annotated[list[str], typer.Argument(help="the program and its arguments, after `--`", metavar="-- COMMAND")],
    name: Annotated[
        str | None, typer.Option(help="the run's name; the same one again attaches, resumes, or returns the result")
    ] = None,
    working_dir: Annotated[
        Path | None, typer.Option(help="a folder that the command finds as its working directory, sent to the cluster")
    ] = None,
    num_cpus: Annotated[float, typer.Option(help="CPUs of the command's own process")] = 0.0,
    num_gpus: Annotated[float, typer.Option(help="GPUs of the command's own process")] = 0.0,
    storage: Storage = None,
    address: Address = None,
    token: Token = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress, no log")] = False,
) -> None:
    """Run a command on the cluster, with RAY_ADDRESS set, to its end; print its result as JSON. A command that is killed is
    started again. Ctrl-C detaches; the run goes on."""
    from plugin_core.runs.directory import run_name
    from plugin_core.specs import RayJobSpec

    script = next((part for part in command if part.endswith((".py", ".sh"))), command[0])
    default = run_name(Path(script).stem, time.strftime("%Y%m%d-%H%M%S"), str(os.getpid()))
    fields: dict[str, Any] = {"runtime_env": {"working_dir": str(working_dir.resolve())}} if working_dir else {}
    spec = RayJobSpec(command=command, num_cpus=num_cpus, num_gpus=num_gpus, **fields)
    follow(spec.with_name(name or default, storage), address, token, quiet)
