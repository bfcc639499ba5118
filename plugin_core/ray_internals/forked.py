"""Stand-in for a process that the embedded head's fork server starts: requests it, and lives and ends with it.

Run by path, with only the standard library: by Ray's raylet in place of Ray's own worker launcher, and with
`-m MODULE ARGUMENT…` by a job for its driver. If no fork server answers, or a variable might have been needed when it
imported its modules, this process execs the other one itself.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

#: The variable for the fork server's socket, set for the raylet.
SOCKET = "RAYTRAIN_FORK_SERVER"
#: The variable that makes a head start with only some pages of the dashboard (see `start_head`).
FEW_PAGES = "RAYTRAIN_FEW_PAGES"
#: The variables that a runtime environment may set: none of the fork server's modules reads them when it is imported.
#: Python reads PYTHONPATH when it starts; the fork server applies it in the same way. Not RAYTRAIN_HANDOVER: it brings
#: the cluster's `env_vars`, which may be anything.
_LATE = re.compile(
    r"RAYTRAIN_(?!HANDOVER$)\w+|RAY_\w+|PYTHONPATH|__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"
    r"|TF_USE_LEGACY_KERAS|JAX_PLATFORMS|DS_ACCELERATOR"
)
#: The fields that a job's runtime environment may have, and the variable where its driver finds that environment.
_WITH_FORK = {"env_vars", "py_modules", "working_dir", "config"}
_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
_CONTEXT, _LANGUAGE = "--serialized-runtime-env-context=", "--language="
#: Seconds between two checks of a worker whose fork server is gone.
LOOK_S = 0.5


def main(arguments: list[str]) -> NoReturn:
    """`arguments`: those of Ray's `setup_worker.py` and `default_worker.py`, with the latter's path between them; or
    `-m`, a module and its arguments."""
    wanted = request(arguments)
    ended = _by_fork_server(wanted) if wanted is not None else None
    if ended is None:
        os.execv(sys.executable, [sys.executable, *(arguments if arguments[0] == "-m" else [_rays_starter(), *arguments])])
    if ended < 0:  # end the same way
        if -ended in (signal.SIGTERM, signal.SIGINT):
            signal.signal(-ended, signal.SIG_DFL)
        os.kill(os.getpid(), -ended)
    os._exit(ended)


def request(arguments: list[str]) -> dict[str, Any] | None:
    """The request to the fork server: what to run, in which environment and folder. None if it must not run it."""
    asked: dict[str, Any] = {"environment": dict(os.environ), "variables": {}, "folder": os.getcwd()}
    if arguments[0] == "-m":
        own = json.loads(os.environ.get(_JOB) or "{}").get("runtime_env") or {}
        is_late = own.keys() <= _WITH_FORK and _are_late(own.get("env_vars") or {})
        return {**asked, "arguments": arguments} if is_late else None
    context: dict[str, Any] = {}
    worker: list[str] = []
    for argument in arguments:
        if argument.startswith(_CONTEXT):
            context = json.loads(argument.removeprefix(_CONTEXT) or "{}")
        elif argument.startswith(_LANGUAGE):
            if argument != f"{_LANGUAGE}PYTHON":
                return None
        elif worker or argument not in ("-s", "-S"):
            worker.append(argument)
    variables = context.pop("env_vars", None) or {}
    own_python = context.pop("py_executable", None) in (None, sys.executable)
    if any(context.values()) or not own_python or not _are_late(variables):
        return None
    return {**asked, "arguments": worker, "variables": variables}


def _are_late(variables: dict[str, str]) -> bool:
    return all(map(_LATE.fullmatch, variables))


def _by_fork_server(wanted: dict[str, Any]) -> int | None:
    """Run it on the fork server and wait for its end: its exit code, or minus the signal that ended it. None if no fork
    server runs it."""
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.connect(os.environ[SOCKET])
            data = json.dumps(wanted).encode()
            socket.send_fds(server, [len(data).to_bytes(8, "big")], [0, 1, 2])
            server.sendall(data)
            with server.makefile("rb") as answers:
                # the process sends its pid; after that, there is no way back
                if not (pid := answers.readline()):
                    return None
                return _outlive(int(pid), answers)
    except (KeyError, OSError):
        return None


def _outlive(pid: int, answers: BinaryIO) -> int:
    _pass_on(pid)
    with contextlib.suppress(OSError):
        if ended := answers.readline():
            return int(ended)
    _wait_for(pid)  # the fork server is gone
    return 1


def _pass_on(pid: int) -> None:
    """Pass on the signals that ask a process to end."""

    def to_it(number: int, frame: Any) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, to_it)


def _wait_for(pid: int) -> None:
    while True:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(LOOK_S)


def _rays_starter() -> str:
    found = importlib.util.find_spec("ray")  # imports nothing
    assert found is not None
    assert found.origin is not None
    return str(Path(found.origin).parent / "_private" / "workers" / "setup_worker.py")


if __name__ == "__main__":
    main(sys.argv[1:])
