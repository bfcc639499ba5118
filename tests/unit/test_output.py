"""The folder of a batch inference, and what a dataset is by its fingerprint."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from plugin_core import DatasetConfig
from plugin_core.errors import SpecError
from plugin_core.fingerprints import dataset_fingerprint, fingerprint_of_all
from plugin_core.output import MARKER, begin, claim_output, commit
from plugin_core.storage import Location


def write(folder: Location, name: str, rows: int) -> None:
    file = Path(folder.uri, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pa.table({"x": range(rows)}), file)


def test_the_marker_names_the_folder_that_counts_its_files_and_rows(tmp_path: Path) -> None:
    root = Location.of(str(tmp_path / "out"))
    claim_output(root, Location.of("/runs/one"))
    killed = begin(root, 1, keyed=False)
    write(killed, "part-0.parquet", 7)
    claim_output(root, Location.of("/runs/one"))
    folder = begin(root, 2, keyed=False)
    write(folder, "part-1.parquet", 2)
    write(folder, "region=north/part-0.parquet", 3)
    assert commit(root, folder, "parquet", "/checkpoint") == 5
    marker = json.loads((tmp_path / "out" / MARKER).read_text())
    assert marker["files"] == {"part-1.parquet": 2, "region=north/part-0.parquet": 3}
    assert (marker["folder"], marker["rows"], marker["checkpoint"]) == ("attempt-002", 5, "/checkpoint")
    assert sorted(os.listdir(tmp_path / "out")) == ["_RUN.json", "_SUCCESS.json", "attempt-002"]


def test_an_attempt_that_is_repeated_begins_with_an_empty_folder_but_keyed_rows_stay(tmp_path: Path) -> None:
    root = Location.of(str(tmp_path))
    write(begin(root, 1, keyed=False), "part.parquet", 1)
    assert begin(root, 1, keyed=False).names() == []
    write(begin(root, 1, keyed=True), "part.parquet", 1)
    assert begin(root, 2, keyed=True).names() == ["part.parquet"]
    second = begin(root, 1, keyed=False, generation=2)
    write(second, "part.parquet", 4)
    assert commit(root, second, "parquet", "/checkpoint") == 4
    assert sorted(os.listdir(tmp_path)) == ["_SUCCESS.json", "g2-attempt-001"]


def test_a_folder_with_other_data_or_of_another_run_is_refused(tmp_path: Path) -> None:
    root = Location.of(str(tmp_path / "out"))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious.csv").write_text("x")
    with pytest.raises(SpecError, match=r"output_path: given .*/out', which holds other data \(precious.csv\)"):
        claim_output(root, Location.of("/runs/one"))
    (tmp_path / "out" / "precious.csv").unlink()
    claim_output(root, Location.of("/runs/one"))
    claim_output(root, Location.of("/runs/one.g2"))
    with pytest.raises(SpecError, match="which holds the output of the run /runs/one"):
        claim_output(root, Location.of("/runs/two"))


def test_a_dataset_is_what_its_files_are(tmp_path: Path) -> None:
    folder = Location.of(str(tmp_path))
    write(folder, "a.parquet", 3)
    config = DatasetConfig(path=str(tmp_path), format="parquet")
    first = dataset_fingerprint(config)
    assert first == dataset_fingerprint(config)
    assert first != dataset_fingerprint(DatasetConfig(path=str(tmp_path), format="parquet", columns=["x"]))
    write(folder, "b/c.parquet", 3)
    assert dataset_fingerprint(config) != first
    os.remove(tmp_path / "b" / "c.parquet")
    assert dataset_fingerprint(config) == first
    assert dataset_fingerprint(DatasetConfig(path=str(tmp_path / "a.parquet"))) is not None


def test_a_users_version_decides_and_a_function_without_one_is_unknown(tmp_path: Path) -> None:
    write(Location.of(str(tmp_path)), "a.parquet", 3)
    versioned = DatasetConfig(path=str(tmp_path), format="parquet", version="2026-11-21")
    first = dataset_fingerprint(versioned)
    write(Location.of(str(tmp_path)), "b.parquet", 3)
    assert dataset_fingerprint(versioned) == first
    by_function = DatasetConfig(function="a:b")
    assert dataset_fingerprint(by_function) is None
    assert fingerprint_of_all({"train": versioned, "test": by_function}) is None
    assert fingerprint_of_all({}) is None
    assert fingerprint_of_all({"train": DatasetConfig(function="a:b", version="1")}) is not None
