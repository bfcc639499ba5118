"""Storages and runs as arguments of commands: a name, a path or a URI."""

from __future__ import annotations

import os
import shlex
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plugin_core.errors import SpecError, StorageError
from plugin_core.errors.shown import did_you_mean

if TYPE_CHECKING:
    from plugin_core.runs.directory import RunDir
    from plugin_core.storage.location import Location

#: Seconds that a shell waits for names to complete.
COMPLETE_S = 2.0


def complete_run(ctx: typer.Context, incomplete: str) -> list[str]:
    """The names of runs in the storage with this prefix; none if it does not answer at once. A shell
    would show an error in the middle of the user's line, so nothing is raised."""
    found: list[str] = []
    storage = ctx.params.get("storage")

    def look() -> None:
        from plugin_core.storage.location import Location, default_storage_path

        try:
            names = Location.of(storage or default_storage_path()).folders()
        except Exception:  # noqa: BLE001 - see above
            return
        found.extend(name for name in names if name.startswith(incomplete) and name[:1] != "." and _is_a_word(name))

    if not _is_path(incomplete):
        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        thread.join(COMPLETE_S)
        if thread.is_alive():
            os._exit(0)  # nothing to offer; an ordinary exit would wait for the storage's client, and the shell for us
    return found


def _is_a_word(name: str) -> bool:
    """Whether a shell takes the name as it is: it inserts completions without quotes, and others may name folders."""
    return shlex.quote(name) == name


RunArgument = Annotated[
    str,
    typer.Argument(metavar="RUN", help="a run's name, or the path or URI of its directory", autocompletion=complete_run),
]
Storage = Annotated[
    str | None,
    typer.Option(help="path or URI of the storage that holds the RUN of that name (default: $RAY_STORAGE, ~/ray_results)"),
]


def open_run(run: str, storage: str | None) -> RunDir:
    """The run directory that RUN means. Raises SpecError if there is none."""
    from plugin_core.runs.directory import RunDir
    from plugin_core.storage.location import Location, default_storage_path

    if _is_path(run):
        found = RunDir.at(run)
        if not found.exists():
            raise SpecError(f"run: got {found.uri!r}; expected a run directory (it has no .step/spec.json)")
        return found
    if storage is None and (here := RunDir.at(run)).exists():
        return here
    home = Location.of(storage or default_storage_path(), "storage")
    found = RunDir.at(home.child(run).uri) if run else RunDir(home)
    if not run or not found.exists():
        raise SpecError(
            f"run: got {run!r}; expected a run directory, or the name of a run in {home.uri}{_close(run, home)}"
        )
    return found


def is_storage(place: str) -> bool:
    """Whether this is a path or URI that is not a run: it may be a storage."""
    from plugin_core.runs.directory import RunDir

    return _is_path(place) and not RunDir.at(place).exists()


def _is_path(run: str) -> bool:
    return "/" in run or run in (".", "..") or run.startswith("~")


def _close(run: str, storage: Location) -> str:
    try:
        return did_you_mean(run, storage.folders())
    except StorageError:
        return ""


def open_storage(storage: str | None) -> Location:
    """The storage at a path or URI (default: the one of a spec that names none). Raises SpecError if it holds no runs."""
    from plugin_core.runs.directory import RunDir
    from plugin_core.storage.location import Location, default_storage_path
    from plugin_core.storage.threads import THREADS

    place = Location.of(storage or default_storage_path(), "storage")
    if not place.is_local:
        import pyarrow

        pyarrow.set_io_thread_count(THREADS)  # before it connects: it lists each run, and by default 8 at once
    if place.is_local and Path(place.path).is_file():
        raise SpecError(f"storage: got {place.uri!r}, which is a file; expected a folder that holds runs")
    if RunDir(place).exists():
        home = place.parent.uri
        raise SpecError(f"storage: got {place.uri!r}, which is a run directory; expected the storage above it, {home!r}")
    if storage is not None and not place.exists():
        raise SpecError(f"storage: got {place.uri!r}, which does not exist; expected a path or URI that holds runs")
    return place


def attempt_of(rundir: RunDir, given: int | None) -> int:
    """The attempt that a command's `--attempt` names; the latest by default."""
    attempts = rundir.outermost.receipts()
    if not attempts:
        raise SpecError(f"run: got {rundir.uri!r}, which has no attempt; expected a submitted run")
    if given is not None and given not in attempts:
        raise SpecError(f"attempt: got {given}; expected one of {', '.join(map(str, attempts))}")
    return given or attempts[-1]
