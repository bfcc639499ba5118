"""Parts of a dataset, told by the rows alone."""

import numpy as np
import pytest

from plugin_core import DatasetConfig
from plugin_core.data import in_part
from plugin_core.errors import SpecError
from plugin_core.fingerprints import dataset_fingerprint
from plugin_core.specs import SplitConfig

ROWS = [{"id": number, "name": f"n{number}", "pixels": np.full(4, number, dtype=np.float32)} for number in range(2000)]


def part(name: str, rows: list[dict[str, object]] = ROWS, **fields: object) -> list[int]:
    split = SplitConfig(part=name, test_size=0.25, **fields)  # type: ignore[arg-type]
    return [row["id"] for row in rows if in_part(row, split)]  # type: ignore[misc]


def test_the_two_parts_have_no_row_in_common_and_leave_none_out() -> None:
    train, test = part("train"), part("test")
    assert sorted(train + test) == list(range(2000))
    assert 450 < len(test) < 550


def test_a_row_stays_in_its_part_when_others_come_or_their_order_changes() -> None:
    assert sorted(part("test", ROWS[::-1])) == part("test")
    assert part("test", ROWS[:500]) == [number for number in part("test") if number < 500]


def test_the_seed_draws_other_parts() -> None:
    assert part("test", seed=1) != part("test")


def test_rows_that_belong_together_stay_together() -> None:
    rows = [{"id": number, "patient": number // 10} for number in range(1000)]
    test = part("test", rows, by=["patient"])
    assert {number // 10 for number in test}.isdisjoint(number // 10 for number in part("train", rows, by=["patient"]))
    assert len(test) % 10 == 0


@pytest.mark.parametrize("size", [0, 1, 1.5])
def test_a_share_that_is_none_is_refused(size: float) -> None:
    with pytest.raises(SpecError, match=r"split\.test_size: given"):
        DatasetConfig(path="x.parquet", split={"part": "test", "test_size": size})


def test_an_unknown_format_is_told() -> None:
    with pytest.raises(SpecError, match="format: given 'parket'"):
        DatasetConfig(path="x", format="parket")


def test_another_part_is_other_data() -> None:
    parts = (None, {"part": "test", "test_size": 0.2}, {"part": "train", "test_size": 0.2})
    assert len({dataset_fingerprint(DatasetConfig(path="x.csv", version="1", split=split)) for split in parts}) == 3
