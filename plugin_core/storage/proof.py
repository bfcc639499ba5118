"""Prove once, by trying, that a storage can hold runs.

Two orchestrators must not both start the same attempt, and only the storage prevents it: creating a file that exists must
fail. A client that requests this cannot rely on the server: some S3-compatible servers ignore `If-None-Match`. So each
storage is tested before its first run, and a file in its root records the result for everybody.
"""

from __future__ import annotations

import contextlib
import json
import threading
import uuid

from plugin_core.errors import SpecError, StorageError
from plugin_core.storage.location import Location
from plugin_core.storage.threads import parallel

#: In the storage's root: `{"proven": [URI, …]}`, the URIs under which it was proven. Delete the file to repeat the proof.
MARKER = ".raytrain-storage.json"
#: Threads that try to create the same file at once.
CREATORS = 4
_proven: set[str] = set()


def ensure(storage: Location) -> None:
    """Prove a storage unless it was proven before: one request if that is recorded on storage, none if this process knows.
    Raises like `prove`."""
    if storage.uri in _proven:
        return
    known = _known(storage)
    if storage.uri not in known:
        prove(storage)
        # if two processes write it at the same time, one of the proofs is repeated later
        storage.child(MARKER).write(json.dumps({"proven": sorted({*known, storage.uri})}).encode())
    _proven.add(storage.uri)


def prove(storage: Location) -> None:
    """Try what a run needs in a temporary folder. Raises SpecError if the storage fails the test, StorageError if it cannot
    be tested."""
    folder = storage.child(f".raytrain-proof-{uuid.uuid4().hex[:8]}")
    try:
        _prove_create(storage, folder.child("created"))
        _prove_replace(storage, folder.child("replaced"))
    finally:
        # runs work without delete permission; the leftovers are a few bytes
        with contextlib.suppress(StorageError):
            folder.delete_dir()


def _prove_create(storage: Location, file: Location) -> None:
    start = threading.Barrier(CREATORS)

    def create(number: int) -> bool:
        start.wait()
        return file.create(str(number).encode())

    won = parallel(create, range(CREATORS))
    if sum(won) != 1:
        raise _refused(storage, f"{sum(won)} of {CREATORS} concurrent creators of one file succeeded")
    if file.create(b"late") or file.read() != str(won.index(True)).encode():
        raise _refused(storage, "creating a file overwrites an existing one")


def _prove_replace(storage: Location, file: Location) -> None:
    for content in (b"old", b"newer"):
        file.write(content)
        if file.read() != content or file.parent.names().count(file.name) != 1:
            raise _refused(storage, "writes are not visible at once")


def _refused(storage: Location, why: str) -> SpecError:
    return SpecError(
        f"run_config.storage_path: got {storage.uri!r}, where {why}, so two attempts of a run could both start;"
        " expected storage that creates a file only if it is absent (an S3 server must honour If-None-Match)"
    )


def _known(storage: Location) -> set[str]:
    """The URIs under which this storage was proven; empty if the file cannot be parsed."""
    try:
        found = json.loads(storage.child(MARKER).read() or b"{}")
    except (ValueError, RecursionError):
        return set()
    proven = found.get("proven") if isinstance(found, dict) else None
    return {uri for uri in proven if isinstance(uri, str)} if isinstance(proven, list) else set()
