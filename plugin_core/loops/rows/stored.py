"""The position's file in a checkpoint."""

from __future__ import annotations

import json
import posixpath
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from plugin_core.errors import SpecError, StorageError
from plugin_core.loops.rows.position import MAX_CUTS, MAX_PARTS, Position
from plugin_core.loops.upload import run_name
from plugin_core.storage.stored_files import parse

FILE = "rows.json"
#: Larger than a position with the maximum number of cuts.
_MAX_BYTES = 10_000


class Order(TypedDict):
    """What determines the order of an epoch's rows, apart from its number. `data`: a digest identifying the rows."""

    rows: int
    seed: int
    shuffle: bool
    data: str


class Stored(Order):
    run: str
    epoch: int
    cuts: list[tuple[int, int]]


def write(folder: str | Path, order: Order, position: Position) -> None:
    stored = {**order, "run": run_name(), "epoch": position.epoch, "cuts": position.cuts}
    Path(folder, FILE).write_text(json.dumps(stored, separators=(",", ":")))


def read(checkpoint: Any, order: Order) -> Position:
    """The position in a `ray.train.Checkpoint`, for this order; the start if there is no checkpoint, or if it belongs
    to another run (a warm start). Only the position's file is read.

    Raises SpecError if the data or its order has changed, or if a checkpoint of this run has no position; StorageError if
    the file is damaged or cannot be read.
    """
    if checkpoint is None:
        return Position()
    path = posixpath.join(checkpoint.path, FILE)
    # a checkpoint on the nodes has a folder for each rank; it is always this run's
    on_nodes = hasattr(checkpoint, "read_file")
    data = checkpoint.read_file(FILE) if on_nodes else _content(checkpoint.filesystem, path)
    if data is not None and len(data) > _MAX_BYTES:
        raise StorageError(f"{path} is damaged: it is larger than {_MAX_BYTES:,} bytes")
    if data is None:
        if on_nodes or posixpath.basename(posixpath.dirname(checkpoint.path.rstrip("/"))) == run_name():
            raise SpecError(
                f"rows: got the checkpoint {checkpoint.path}, which has no {FILE}; expected one made with"
                " report(…, rows=…) or rows.save(folder)"
            )
        return Position()
    stored = parse(Stored, data, path)
    if stored["run"] != run_name():
        return Position()
    _check_order(stored, order)
    return _position(stored, path)


def _check_order(stored: Stored, order: Order) -> None:
    rule = "; expected the same data in the same order, or a new run (`resume_from` takes the weights along)"
    if stored["rows"] != order["rows"]:
        raise SpecError(
            f"rows: got a dataset of {order['rows']:,} rows, and a checkpoint made with {stored['rows']:,}{rule}"
        )
    for name in ("seed", "shuffle"):
        if stored[name] != order[name]:
            raise SpecError(f"{name}: got {order[name]}, and a checkpoint made with {name}={stored[name]}{rule}")
    if stored["data"] != order["data"]:
        raise SpecError(f"rows: got as many rows as the checkpoint was made with, but different data{rule}")


def _position(stored: Stored, path: str) -> Position:
    cuts, rows = stored["cuts"], stored["rows"]
    valid = (
        0 <= stored["epoch"] < 2**53
        and len(cuts) <= MAX_CUTS
        and all(1 <= parts <= MAX_PARTS and 1 <= used <= rows for parts, used in cuts)
        and sum(parts for parts, _ in cuts) <= MAX_PARTS + MAX_CUTS
    )
    if not valid:
        raise StorageError(f"{path} is damaged: it does not hold a position in {rows:,} rows")
    return Position(stored["epoch"], tuple(cuts))


def _content(filesystem: Any, path: str) -> bytes | None:
    try:
        with filesystem.open_input_stream(path) as stream:
            data: bytes = stream.read(_MAX_BYTES + 1)
            return data
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise StorageError(f"{path} cannot be read: {exc}") from exc
