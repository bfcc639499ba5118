"""`python -m plugin_core.ray_internals.start_head start …`: `ray start …` with what the environment asks for: a fork
server that starts the workers, and only some pages of the dashboard."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from ray._private import services
from ray._private.parameter import RayParams
from ray.scripts.scripts import main

from plugin_core.ray_internals import fork_server, forked

#: The Jobs API, the state API with the logs, nodes and actors, and what their pages show. Every other module (metrics,
#: events, Serve, and the pages of Ray Train and Ray Data) is one more process.
MODULES = ("JobHead", "StateHead", "NodeHead", "ReportHead")


def start_fork_server() -> None:
    """Start it at the socket that the environment names. It ends with this process."""
    place = os.environ[forked.SOCKET]
    command = [sys.executable, "-m", fork_server.__name__, place, fork_server.ROOM]
    subprocess.Popen(command, process_group=0, stdin=subprocess.DEVNULL)
    given = RayParams.__init__

    def with_starter(self: RayParams, *arguments: Any, **options: Any) -> None:
        given(self, *arguments, **{"setup_worker_path": forked.__file__, **options})

    RayParams.__init__ = with_starter


def show_few_pages() -> None:
    start = services.start_ray_process

    def with_modules(command: list[str], process_type: str, *arguments: Any, **options: Any) -> Any:
        if process_type == services.ray_constants.PROCESS_TYPE_DASHBOARD:
            command = [*command, f"--modules-to-load={','.join(MODULES)}"]
        return start(command, process_type, *arguments, **options)

    services.start_ray_process = with_modules


if __name__ == "__main__":
    if forked.SOCKET in os.environ:
        start_fork_server()
    if forked.FEW_PAGES in os.environ:
        show_few_pages()
    main()
