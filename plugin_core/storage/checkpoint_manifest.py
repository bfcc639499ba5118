"""A checkpoint's manifest, written last: a checkpoint that does not match it is never used.

Each rank that uploads files lists them with sizes and CRC-32s, after the upload and before the report reaches Ray's
controller; so a registered checkpoint has the lists of all its ranks. Checkpoints from other libraries have no manifest
and are not checked.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import TypedDict

from plugin_core.errors import SpecError, StorageError
from plugin_core.storage.location import Location
from plugin_core.storage.stored_files import parse
from plugin_core.storage.threads import parallel

if TYPE_CHECKING:
    import ray.train

#: Deleted last, with its checkpoint: what a killed deletion leaves would else count as a checkpoint of another library.
FOLDER = ".manifest"
#: The suffix of a checkpoint directory's name: attempt and number (see `driver/train/worker.py`).
NAME = re.compile(r"_a(\d{3,})_(\d{6,})$")
_CHUNK = 1 << 20


def describe(folder: str | Path, *, linked: bool = False) -> dict[str, list[int]]:
    """The files below a local folder: path → size in bytes, CRC-32. `linked`: also those below folders that it links to."""
    found = {}
    for place, _, names in os.walk(folder, followlinks=linked):
        for name in names:
            file = Path(place, name)
            path = file.relative_to(folder).as_posix()
            if not path.startswith(f"{FOLDER}/"):
                found[path] = [file.stat().st_size, _crc32(file)]
    return found


def upload(checkpoint: ray.train.Checkpoint, name: str) -> ray.train.Checkpoint:
    """Ray Train's `checkpoint_upload_fn`: Ray's own upload, followed by the manifest."""
    from plugin_core.ray_internals.worker import upload_checkpoint, worker_context

    files = describe(checkpoint.path)
    kept = upload_checkpoint(checkpoint, name)
    kept.filesystem.create_dir(f"{kept.path}/{FOLDER}")
    with kept.filesystem.open_output_stream(f"{kept.path}/{_of_rank(worker_context().get_world_rank())}") as stream:
        stream.write(_dump(files))
    return kept


def write(folder: Path, rank: int, files: dict[str, list[int]] | None = None) -> None:
    """Write the manifest of a rank's files in a local folder; `files`: what `describe` found. Raises OSError."""
    files = describe(folder) if files is None else files
    (folder / FOLDER).mkdir(exist_ok=True)
    (folder / _of_rank(rank)).write_bytes(_dump(files))


def order(name: str) -> tuple[int, int]:
    """Attempt and number of a checkpoint, by its name; (0, 0) for any other name."""
    found = NAME.search(name)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def highest_number(names: Iterable[str], attempt: int) -> int:
    """The highest number of the attempt's checkpoints among these names, 0 if there is none."""
    return max((number for of, number in map(order, names) if of == attempt), default=0)


def problem(checkpoint: Location) -> str:
    """The first mismatch of names or sizes between a stored checkpoint and its manifest; "" if it matches or has none.
    Raises StorageError if that cannot be determined."""
    lists = checkpoint.child(FOLDER)
    names = lists.names()
    expected, torn = _merged(zip(names, parallel(lambda name: _files(lists.child(name)), names), strict=True))
    if torn or not expected:
        return torn
    there = checkpoint.files()
    for path, versions in expected.items():
        found, sizes = there.get(path), sorted({size for size, _ in versions})
        if found is None or found.size not in sizes:
            return f"{path} is missing" if found is None else f"{path} has {found.size} of {sizes[0]} bytes"
    return ""


def mismatch(folder: Path) -> str:
    """The first mismatch between a local folder's files, read byte by byte, and their manifest; "" if there is none."""
    files = sorted((folder / FOLDER).glob("*.json"))
    expected, torn = _merged((file.name, _parse(file.read_bytes())) for file in files)
    if torn:
        return torn
    found = parallel(lambda path: _mismatch(folder / path, path, expected[path]), list(expected), os.cpu_count() or 1)
    return next(filter(None, found), "")


def _mismatch(file: Path, path: str, versions: set[tuple[int, int]]) -> str:
    if not file.is_file() or file.stat().st_size not in {size for size, _ in versions}:
        return f"{path} is missing or truncated"
    return "" if _crc32(file) in {crc32 for _, crc32 in versions} else f"{path} fails its CRC-32 check"


def _merged(
    lists: Iterable[tuple[str, dict[str, tuple[int, int]] | None]],
) -> tuple[dict[str, set[tuple[int, int]]], str]:
    """Path → size and CRC-32 in each rank's list, since ranks may write files of the same name and the last one wins;
    and which list is torn, "" if none is."""
    expected: dict[str, set[tuple[int, int]]] = {}
    for name, files in lists:
        if files is None:
            return {}, f"{FOLDER}/{name} is torn"
        for path, version in files.items():
            expected.setdefault(path, set()).add(version)
    return expected, ""


def missing(uri: str) -> SpecError:
    return SpecError(f"checkpoint: got {uri!r}, which does not exist or was deleted; expected a checkpoint")


def damaged(uri: str, what: str, field: str = "checkpoint") -> SpecError:
    return SpecError(f"{field}: got {uri!r}, which is damaged ({what}); expected an intact checkpoint")


def _of_rank(rank: int) -> str:
    return f"{FOLDER}/{rank:05}.json"


def _dump(files: dict[str, list[int]]) -> bytes:
    return json.dumps({"files": files}).encode()


class _Manifest(TypedDict):
    files: dict[str, tuple[int, int]]


def _files(place: Location) -> dict[str, tuple[int, int]] | None:
    data = place.read()
    return _parse(data) if data is not None else None


def _parse(data: bytes) -> dict[str, tuple[int, int]] | None:
    try:
        return parse(_Manifest, data, "a manifest")["files"]
    except StorageError:
        return None


def _crc32(file: Path) -> int:
    value = 0
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            value = zlib.crc32(chunk, value)
    return value
