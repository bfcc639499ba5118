"""The command `raytrain`, put together."""

from __future__ import annotations

import io
import os
import sys

import typer

from plugin_core.cli import clusters, data, history, job, ledger, logs, rehearse, runs, steps, timeline, upkeep
from plugin_core.cli.exit_codes import epilog
from plugin_core.cli.output import err
from plugin_core.errors import RayTrainWorkflowsError
from plugin_core.errors.plain_text import plain

# locals may hold a token
app = typer.Typer(
    help="Distributed training as a workflow step. RUN is a run's name, or the path or URI of its directory.",
    epilog=epilog(),
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)
for command in (
    *(
        steps.run,
        job.job,
        rehearse.rehearse,
        data.data,
        runs.ls,
        runs.top,
        runs.status,
        logs.logs,
        runs.result,
        history.history,
        timeline.timeline,
        ledger.ledger,
        steps.cancel,
    ),
    *(upkeep.checkpoints, upkeep.prune, upkeep.track, clusters.doctor),
):
    app.command()(command)
app.add_typer(clusters.cluster_app, name="cluster")


def main() -> None:
    # "mymodule:function" in a spec may be in the working directory; it comes last, so that no file here shadows a package
    here = os.getcwd()
    sys.path[:] = [*(entry for entry in sys.path if entry not in ("", here)), here]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a log may hold what the terminal's encoding has no character for
    try:
        app()
    except RayTrainWorkflowsError as exc:
        if exc.details:
            err.print(plain(exc.details), markup=False)
        err.print(f"{type(exc).__name__}: {plain(exc.message)}", markup=False, soft_wrap=True)
        sys.exit(exc.exit_code)
