"""The log of an offline W&B run, complete or half written."""

from pathlib import Path

import pytest
from wandb.proto.wandb_internal_pb2 import Record

from plugin_core.tracking.wandb_log import BLOCK, FIRST, HEADER, LAST, WHOLE, is_complete, records, wait_until_written

MIDDLE = 3


def log_of(*contents: bytes) -> bytes:
    """As LevelDB writes it, with a CRC of zeros."""
    data = bytes(HEADER)
    for content in contents:
        first = True
        while first or content:
            left = BLOCK - len(data) % BLOCK
            if left < HEADER:
                data += bytes(left)
                continue
            part, content = content[: left - HEADER], content[left - HEADER :]
            kind = (FIRST if content else WHOLE) if first else (MIDDLE if content else LAST)
            data += bytes(4) + len(part).to_bytes(2, "little") + bytes([kind]) + part
            first = False
    return data


def report(size: int) -> bytes:
    record = Record()
    record.history.item.add(key="loss", value_json="1" * size)
    return bytes(record.SerializeToString())


def the_end() -> bytes:
    record = Record()
    record.exit.exit_code = 0
    return bytes(record.SerializeToString())


# some leave fewer than 7 bytes of a block, or split the last record
@pytest.mark.parametrize("size", [1, 100, *range(BLOCK - 50, BLOCK + 10), 2 * BLOCK, 5 * BLOCK - 30])
def test_a_log_is_complete_with_its_last_record_and_not_a_byte_before(tmp_path: Path, size: int) -> None:
    file = tmp_path / "run-1.wandb"
    data = log_of(report(size), the_end())
    assert list(records(data)) == [report(size), the_end()]
    file.write_bytes(data)
    assert is_complete(file)
    for left in (len(data) - 1, len(data) - len(the_end()), HEADER, 0):
        file.write_bytes(data[:left])
        assert not is_complete(file)


@pytest.mark.slow
def test_a_log_that_is_never_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "run-1.wandb").write_bytes(log_of(report(9)))
    with pytest.raises(TimeoutError, match=r"W&B has not written the end of run-1\.wandb after 0\.1 s"):
        wait_until_written(tmp_path, 0.1)
