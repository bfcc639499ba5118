"""The log of an offline W&B run: a LevelDB log (blocks of 32 KiB) after a header of 7 bytes, with W&B's own records."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

BLOCK = 32 * 1024
#: Bytes of the file's header, and of the header of each part of a record: CRC (4), length (2), kind (1).
HEADER = 7
#: LevelDB's kinds of parts: a whole record, or its first, a middle or its last part.
WHOLE, FIRST, LAST = 1, 2, 4
#: Seconds that W&B's service may take to write the end of a log. It takes milliseconds on a machine with a free core.
WRITTEN_S = 60.0


def records(data: bytes, from_start: bool = True) -> Iterator[bytes]:
    """The complete records of a log, or of its end from the start of any block (`from_start=False`)."""
    position = HEADER if from_start else 0
    record: bytes | None = None
    while position + HEADER <= len(data):
        left = BLOCK - position % BLOCK
        if left < HEADER:  # the rest of a block is too short for a part
            position += left
            continue
        length, kind = int.from_bytes(data[position + 4 : position + 6], "little"), data[position + 6]
        position += HEADER
        if position + length > len(data):
            return
        if kind in (WHOLE, FIRST):
            record = b""
        if record is not None:  # else it began in an earlier block
            record += data[position : position + length]
            if kind in (WHOLE, LAST):
                yield record
                record = None
        position += length


def wait_until_written(folder: Path, timeout_s: float = WRITTEN_S) -> None:
    """Wait until the logs below `folder`, of runs that are finished, are complete: `finish` returns before W&B's service
    has written them. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    for file in folder.rglob("*.wandb"):
        while not is_complete(file):
            if time.monotonic() > deadline:
                raise TimeoutError(f"W&B has not written the end of {file.name} after {timeout_s:g} s")
            time.sleep(0.02)


def is_complete(file: Path) -> bool:
    """Whether a log holds the record of its run's end, which is in its last two blocks."""
    from wandb.proto.wandb_internal_pb2 import Record

    with file.open("rb") as stream:
        start = max(0, file.stat().st_size // BLOCK - 1) * BLOCK
        stream.seek(start)
        data = stream.read()
    return any(Record.FromString(record).HasField("exit") for record in records(data, from_start=start == 0))
