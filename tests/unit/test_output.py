"""The folder of a batch inference, and what a dataset is by its fingerprint."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from plugin_core import BatchInferSpec, CheckpointRef, DatasetConfig, RunConfig
from plugin_core.errors import FencedError, InfrastructureError, SpecError
from plugin_core.runs.dataset_fingerprint import dataset_fingerprint, fingerprint_of_all
from plugin_core.runs.directory import RunDir
from plugin_core.runs.fence import Fence
from plugin_core.runs.output_folder import (
    MARKER,
    begin,
    claim_output,
    commit,
    committed,
    count_rows,
    drop_unrecorded,
    publish,
)
from plugin_core.storage.location import Location
from plugin_core.supervisor.preflight import check_functions_and_data


def write(folder: Location, name: str, rows: int) -> None:
    file = Path(folder.uri, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pa.table({"x": range(rows)}), file)


def fence_of(tmp_path: Path, attempt: int, name: str = "run") -> Fence:
    """The fence of an attempt of a run that has receipts up to this one."""
    rundir = RunDir.at(str(tmp_path / name))
    for number in range(1, attempt + 1):
        rundir.claim(number, "address", "incarnation")
    return Fence(rundir.uri, attempt)


def test_the_marker_names_the_folder_that_counts_its_files_and_rows(tmp_path: Path) -> None:
    root = Location.of(str(tmp_path / "out"))
    claim_output(root, Location.of("/runs/one"))
    killed = begin(root, 1, keyed=False)
    write(killed, "part-0.parquet", 7)
    claim_output(root, Location.of("/runs/one"))
    folder = begin(root, 2, keyed=False)
    write(folder, "part-1.parquet", 2)
    write(folder, "region=north/part-0.parquet", 3)
    assert commit(root, folder, "parquet", "/checkpoint", 5, fence_of(tmp_path, 2)) == 5
    marker = json.loads((tmp_path / "out" / MARKER).read_text())
    assert marker["files"] == {"part-1.parquet": 2, "region=north/part-0.parquet": 3}
    assert (marker["folder"], marker["rows"], marker["checkpoint"]) == ("attempt-002", 5, "/checkpoint")
    assert [name for name in sorted(os.listdir(tmp_path / "out")) if "_COMMIT" not in name] == [
        "_RUN.json",
        "_SUCCESS.json",
        "attempt-002",
    ]


def test_an_attempt_that_is_repeated_begins_with_an_empty_folder_but_keyed_rows_stay(tmp_path: Path) -> None:
    root = Location.of(str(tmp_path))
    write(begin(root, 1, keyed=False), "part.parquet", 1)
    assert begin(root, 1, keyed=False).names() == []
    write(begin(root, 1, keyed=True), "part.parquet", 1)
    assert begin(root, 2, keyed=True).names() == ["part.parquet"]
    second = begin(root, 1, keyed=False, generation=2)
    write(second, "part.parquet", 4)
    assert commit(root, second, "parquet", "/checkpoint", 4, fence_of(tmp_path / "runs", 1, "run.g2")) == 4
    left = [name for name in sorted(os.listdir(tmp_path)) if name != "runs" and "_COMMIT" not in name]
    assert left == ["_SUCCESS.json", "g2-attempt-001"]


STOPPED = """
import os, signal, sys
from plugin_core.runs import output_folder as output
from plugin_core.runs.fence import Fence
from plugin_core.storage.location import Location
from plugin_core.supervisor.preflight import check_functions_and_data

root = Location.of(sys.argv[1])
fence, looks = Fence(sys.argv[2], 1), [0]
def check():
    Fence.check(fence)
    looks[0] += 1
    if looks[0] == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGSTOP)  # right behind its look at the fence, right before its write
fence.check = check
if sys.argv[3] == "0":
    os.kill(os.getpid(), signal.SIGSTOP)
output.commit(root, root.child("attempt-001"), "parquet", "/checkpoint", 100, fence)
"""


@pytest.mark.parametrize("looks", [0, 1, 2, 3], ids=["commit", "its record", "a deletion", "the marker"])
def test_an_attempt_that_was_stopped_before_its_commit_wakes_up_and_harms_nothing(tmp_path: Path, looks: int) -> None:
    """Attempt 1 is stopped before `commit`, or within it; attempt 2 writes and commits, before or after 1 wakes up."""
    root = Location.of(str(tmp_path / "out"))
    fence_of(tmp_path, 1)
    (tmp_path / "out" / "g0-attempt-001").mkdir(parents=True)
    write(begin(root, 1, keyed=False), "part.parquet", 100)
    command = [sys.executable, "-c", STOPPED, root.uri, str(tmp_path / "run"), str(looks)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as first:
        os.waitid(os.P_PID, first.pid, os.WSTOPPED | os.WNOWAIT)
        fence = fence_of(tmp_path, 2)
        done = committed(root, fence)
        assert (done is not None) is (looks > 1)
        if done is None:
            folder = begin(root, 2, keyed=False)
            write(folder, "part-0.parquet", 50)
        os.kill(first.pid, signal.SIGCONT)
        assert first.stderr is not None
        said = first.stderr.read()
    assert ("FencedError: a later attempt owns" in said) is (looks != 3)
    if done is None and (done := committed(root, fence)) is None:
        write(folder, "part-1.parquet", 50)
        assert commit(root, folder, "parquet", "/checkpoint", 100, fence) == 100
    else:
        publish(root, done, fence)
    marker = json.loads((tmp_path / "out" / MARKER).read_text())
    assert marker["rows"] == 100
    assert sum(count_rows(root.child(marker["folder"]), "parquet").values()) == 100
    assert [name for name in root.names() if not name.startswith("_")] == [marker["folder"]]


def test_a_second_commit_of_one_generation_is_refused(tmp_path: Path) -> None:
    root = Location.of(str(tmp_path / "out"))
    folders = [begin(root, attempt, keyed=False) for attempt in (1, 2)]
    for folder in folders:
        write(folder, "part.parquet", 3)
    fence = fence_of(tmp_path, 2)
    assert commit(root, folders[1], "parquet", "/checkpoint", 3, fence) == 3
    with pytest.raises(FencedError, match="another attempt has committed"):
        commit(root, folders[1], "parquet", "/checkpoint", 3, fence)


def test_a_later_run_ignores_the_commit_of_a_run_deleted_by_hand(tmp_path: Path) -> None:
    root = Location.of(str(tmp_path / "out"))
    for rows in (3, 4):
        fence = fence_of(tmp_path, 1)
        assert committed(root, fence) is None
        folder = begin(root, 1, keyed=False)
        write(folder, "part.parquet", rows)
        assert commit(root, folder, "parquet", "/checkpoint", rows, fence) == rows
        shutil.rmtree(tmp_path / "run")
    assert len([name for name in root.names() if "_COMMIT" in name]) == 1


def test_keyed_rows_of_a_run_deleted_by_hand_are_not_committed_again(tmp_path: Path) -> None:
    root, records = Location.of(str(tmp_path / "out")), Location.of(str(tmp_path / "run" / ".step" / "rows"))
    for name in ("old.parquet", "new.parquet"):
        fence = fence_of(tmp_path, 2)
        for attempt in (1, 2):
            folder = begin(root, attempt, keyed=True)
            drop_unrecorded(folder, records, fence)
            if attempt == 1:
                records.child(name).write(b"the keys")
                write(folder, name, 3)
        assert commit(root, folder, "parquet", "/checkpoint", 0, fence) == 3
        assert folder.names() == [name]
        shutil.rmtree(tmp_path / "run")


def test_a_commit_that_finds_fewer_rows_than_were_written_fails(tmp_path: Path) -> None:
    root = Location.of(str(tmp_path / "out"))
    folder = begin(root, 1, keyed=False)
    write(folder, "part-0.parquet", 50)
    with pytest.raises(InfrastructureError, match="holds 50 of the 100 rows written; some files are missing"):
        commit(root, folder, "parquet", "/checkpoint", 100, fence_of(tmp_path, 1))
    assert root.names() == ["attempt-001"]


def test_rows_of_csv_are_counted_even_if_one_is_empty_or_has_several_lines(tmp_path: Path) -> None:
    pyarrow.csv.write_csv(pa.table({"x": ["a", None, "", "b\nc", None]}), tmp_path / "part.csv")
    assert count_rows(Location.of(str(tmp_path)), "csv") == {"part.csv": 5}


def test_a_folder_with_other_data_or_of_another_run_is_refused(tmp_path: Path) -> None:
    root = Location.of(str(tmp_path / "out"))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious.csv").write_text("x")
    with pytest.raises(SpecError, match=r"output_path: got .*/out', which holds other data \(precious.csv\)"):
        claim_output(root, Location.of("/runs/one"))
    (tmp_path / "out" / "precious.csv").unlink()
    claim_output(root, Location.of("/runs/one"))
    claim_output(root, Location.of("/runs/one.g2"))
    with pytest.raises(SpecError, match="which holds the output of the run /runs/one"):
        claim_output(root, Location.of("/runs/two"))


def test_a_datasets_fingerprint_comes_from_its_files(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("path", ["out", "out/below"])
def test_an_output_path_that_is_a_file_is_refused_before_the_submit(tmp_path: Path, path: str) -> None:
    (tmp_path / "out").write_text("x")
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "model").write_text("x")
    write(Location.of(str(tmp_path / "data")), "a.parquet", 3)
    spec = BatchInferSpec(
        checkpoint=CheckpointRef(uri=str(tmp_path / "checkpoint")),
        predictor="devtools.steps:Predictor",
        dataset=DatasetConfig(path=str(tmp_path / "data"), format="parquet"),
        output_path=str(tmp_path / path),
        run_config=RunConfig(name="predict", storage_path=str(tmp_path / "runs")),
    )
    with pytest.raises(SpecError, match=f"output_path: got '.*/{path}', where a file is in the way; expected a folder"):
        check_functions_and_data(spec, here=True)
