"""Whether a storage can hold runs, found out by doing it, once.

Two orchestrators must not both begin the same attempt, and what keeps them from it is the storage: creating a file has to
fail where there is one. A client that asks for this is no proof that the server obeys: some servers with an S3 API ignore
`If-None-Match`. So before the first run, a storage shows it, and a file in its root remembers that for everybody.
"""

from __future__ import annotations

import contextlib
import json
import threading
import uuid

from plugin_core.errors import SpecError, StorageError
from plugin_core.storage.location import Location
from plugin_core.storage.threads import parallel

#: In the storage's root: `{"proven": [URI, …]}`, the URIs by which it was used when it was proven. Delete it to prove anew.
MARKER = ".raytrain-storage.json"
#: How many try to create one file at the same time.
CREATORS = 4
_proven: set[str] = set()


def ensure(storage: Location) -> None:
    """Prove a storage unless it was proven before, with one request where that is written down, with none where this
    process knows. Raises what `prove` raises."""
    if storage.uri in _proven:
        return
    known = _known(storage)
    if storage.uri not in known:
        prove(storage)
        # two processes that write it at the same time cost somebody another proof later
        storage.child(MARKER).write(json.dumps({"proven": sorted({*known, storage.uri})}).encode())
    _proven.add(storage.uri)


def prove(storage: Location) -> None:
    """Try what a run needs in a folder of its own, which is deleted. Raises SpecError where the storage does not do it,
    StorageError where it cannot be told."""
    folder = storage.child(f".raytrain-proof-{uuid.uuid4().hex[:8]}")
    try:
        _prove_create(storage, folder.child("created"))
        _prove_replace(storage, folder.child("replaced"))
    finally:
        # who may not delete may still run; what stays of the proof is a few bytes
        with contextlib.suppress(StorageError):
            folder.delete_dir()


def _prove_create(storage: Location, file: Location) -> None:
    start = threading.Barrier(CREATORS)

    def create(number: int) -> bool:
        start.wait()
        return file.create(str(number).encode())

    won = parallel(create, range(CREATORS))
    if sum(won) != 1:
        raise _refused(storage, f"{sum(won)} of {CREATORS} creators of one file at the same time believe that they made it")
    if file.create(b"late") or file.read() != str(won.index(True)).encode():
        raise _refused(storage, "creating a file replaces the one that is there")


def _prove_replace(storage: Location, file: Location) -> None:
    for content in (b"old", b"newer"):
        file.write(content)
        if file.read() != content or file.parent.names().count(file.name) != 1:
            raise _refused(storage, "what is written is not there at once")


def _refused(storage: Location, why: str) -> SpecError:
    return SpecError(
        f"run_config.storage_path: got {storage.uri!r}, where {why}, so that two attempts of a run could both begin;"
        " expected storage that creates a file only where there is none (an S3 server: one that obeys If-None-Match)"
    )


def _known(storage: Location) -> set[str]:
    """The URIs by which this storage was proven; none where the file says nothing that can be understood."""
    try:
        found = json.loads(storage.child(MARKER).read() or b"{}")
    except ValueError:
        return set()
    proven = found.get("proven") if isinstance(found, dict) else None
    return {uri for uri in proven if isinstance(uri, str)} if isinstance(proven, list) else set()
