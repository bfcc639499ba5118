"""`python -m plugin_core.ray_internals.fork_server SOCKET ROOM`: start the embedded head's workers and drivers by
forking.

Imports take most of their start-up time. torch, and what Ray Train imports besides Ray, are imported here once per
head; each worker or driver is a fork of this process and shares that memory. Ray itself is not imported: it reads its
settings, such as the worker's job, when its library is loaded. This process starts no threads, and a fork keeps nothing
of this package. `multiprocessing` also has a fork server, but it runs pickled objects and lets a fork outlive the
process that asked for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import importlib.util
import io
import json
import os
import runpy
import selectors
import signal
import socket
import sys
from pathlib import Path
from typing import Any

#: The modules that take longest to import; those that are not installed are skipped.
MODULES = (
    "numpy",
    "pandas",
    "pyarrow.compute",
    "pyarrow.dataset",
    "pyarrow.fs",
    "pyarrow.parquet",
    "aiohttp",
    "fsspec",
    "google.protobuf.descriptor_pb2",
    "jsonschema",
    "pydantic",
    "requests",
    "torch",
    "torch._dynamo",  # imported by the first step of DistributedDataParallel, or of an optimizer
    "torch.distributed",
    "torch.nn.parallel",
    "torch.utils.data",
)
#: What Ray's raylet sets for the processes it starts (`worker_oom_score_adjustment`): they are killed first.
OOM_SCORE = "1000"
#: The last argument, which reserves room: a fork's title overwrites its arguments, and a driver's title names its run.
ROOM = "." * 2000
#: Seconds for a request to arrive once its sender has connected.
REQUEST_S = 10.0


def preload() -> None:
    for name in MODULES:
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            continue
        try:
            importlib.import_module(name)
        except Exception as exc:  # noqa: BLE001 - the worker that needs it says what is wrong
            print(f"{name} cannot be imported in advance: {exc!r}", file=sys.stderr)
    gc.collect()
    gc.freeze()  # or the first collection in a worker would copy the shared memory


class Server:
    """Forks on request. Kills a worker when its asker, the process that requested it, ends; tells an asker how its
    worker ended."""

    def __init__(self, listener: socket.socket):
        self._listener = listener
        self._askers: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._woken, self._wakes = socket.socketpair()
        for each in (self._woken, self._wakes):
            each.setblocking(False)
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)

    def serve(self) -> dict[str, Any]:
        """Never returns in this process; in each forked worker, it returns what to run."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    if (wanted := self._accept()) is not None:
                        return wanted
                elif key.fileobj is self._woken:
                    with contextlib.suppress(BlockingIOError):
                        self._woken.recv(4096)
                    self._bury()
                elif self._askers.get(key.data) is key.fileobj:  # askers send nothing more, so this one has ended
                    self._selector.unregister(key.fileobj)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(key.data, signal.SIGKILL)

    def _accept(self) -> dict[str, Any] | None:
        asker, _ = self._listener.accept()
        asker.settimeout(REQUEST_S)
        files: list[int] = []
        try:
            size, files, _, _ = socket.recv_fds(asker, 8, 3, socket.MSG_WAITALL)
            with asker.makefile("rb") as stream:
                wanted: dict[str, Any] = json.loads(stream.read(int.from_bytes(size, "big")))
            pid = os.fork()
        except (OSError, ValueError) as exc:
            print(f"no worker was started: {exc!r}", file=sys.stderr)
            asker.close()
            pid = -1
        if pid == 0:
            self._become_worker(asker, files)
            return wanted
        for file in files:
            os.close(file)
        if pid > 0:
            self._askers[pid] = asker
            self._selector.register(asker, selectors.EVENT_READ, pid)
        return None

    def _become_worker(self, asker: socket.socket, files: list[int]) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setpgid(0, 0)  # Ray may end a worker's process group, which must not be this server's
        try:
            asker.sendall(f"{os.getpid()}\n".encode())
        except OSError:
            os._exit(1)  # the asker has ended
        self._selector.close()
        for each in (self._listener, self._woken, self._wakes, asker, *self._askers.values()):
            each.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)

    def _bury(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0] != 0:
                asker = self._askers.pop(ended[0])
                with contextlib.suppress(OSError):
                    asker.sendall(f"{os.waitstatus_to_exitcode(ended[1])}\n".encode())
                with contextlib.suppress(KeyError):
                    self._selector.unregister(asker)
                asker.close()


def die_with_parent(number: signal.Signals) -> None:
    """On Linux, this process gets the signal when its parent ends for any reason."""
    pr_set_pdeathsig, parent = 1, os.getppid()
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def set_up(wanted: dict[str, Any]) -> str:
    """Make this fork look like a new process; returns the path of the program, or the name of the module, to run."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "plugin_core"]:
        del sys.modules[name]  # it may have been upgraded since
    os.environ.clear()
    os.environ.update(wanted["environment"])
    os.environ.update({name: os.path.expandvars(value) for name, value in wanted["variables"].items()})  # as Ray does
    os.chdir(wanted["folder"])
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # or all workers draw the same; Python's generator reseeds itself
    program, arguments = wanted["arguments"][0], wanted["arguments"][1:]
    own = str(Path(program).parent)
    if program == "-m":
        own, program, arguments = wanted["folder"], arguments[0], arguments[1:]
        _be_a_driver(program, arguments)
    elif "torch" in sys.modules:
        _let_torch_follow_ray()
    sys.argv = [program, *arguments]
    named = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    sys.path[:] = [own, *named, *(place for place in sys.path[1:] if place not in named)]
    return str(program)


def _be_a_driver(module: str, arguments: list[str]) -> None:
    """Set up what only a driver needs. Its output is a file that people follow. It must not outlive the process that
    asked for it, which Ray takes for the driver; the fork server ensures that while it is alive itself."""
    from ray._raylet import setproctitle  # type: ignore[attr-defined]

    die_with_parent(signal.SIGKILL)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(write_through=bool(os.environ.get("PYTHONUNBUFFERED")))
    setproctitle(" ".join([sys.executable, "-m", module, *arguments]))


def _let_torch_follow_ray() -> None:
    """torch reads OMP_NUM_THREADS when it is imported. Ray sets it later, to the CPUs of a worker's first task."""
    import torch
    from ray._private import utils

    given = utils.set_omp_num_threads_if_unset

    def set_threads() -> bool:
        is_set: bool = given()
        if is_set:
            torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        return is_set

    utils.set_omp_num_threads_if_unset = set_threads


def main(place: str) -> str:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(place)
        listener.listen(128)  # requests that come before the modules are imported wait
        preload()
        wanted = Server(listener).serve()
    return set_up(wanted)


def run(program: str) -> None:
    if program.endswith(".py"):
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    die_with_parent(signal.SIGTERM)
    run(main(sys.argv[1]))
