"""`python -m plugin_core.ray_internals.start_head start …`: `ray start …` with a fork server, which starts the workers."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from ray._private.parameter import RayParams
from ray.scripts.scripts import main

from plugin_core.ray_internals import fork_server, forked


def start_fork_server() -> None:
    """At the socket that the environment names. It ends with this process."""
    place = os.environ[forked.SOCKET]
    command = [sys.executable, "-m", fork_server.__name__, place, fork_server.ROOM]
    subprocess.Popen(command, process_group=0, stdin=subprocess.DEVNULL)
    given = RayParams.__init__

    def with_starter(self: RayParams, *arguments: Any, **options: Any) -> None:
        given(self, *arguments, **{"setup_worker_path": forked.__file__, **options})

    RayParams.__init__ = with_starter


if __name__ == "__main__":
    start_fork_server()
    main()
