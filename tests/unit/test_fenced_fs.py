"""The filesystem that Ray Train gets: no write of an attempt reaches a run that a later attempt owns."""

import pickle
from pathlib import Path

import pyarrow.fs
import pytest

from plugin_core.driver.fenced_filesystem import SNAPSHOT, fenced_filesystem
from plugin_core.errors import FencedError
from plugin_core.runs import timings
from plugin_core.runs.directory import RunDir


@pytest.fixture
def rundir(tmp_path: Path) -> RunDir:
    rundir = RunDir.at(str(tmp_path / "run"))
    rundir.claim(1, "a", "i")
    return rundir


def write(filesystem: pyarrow.fs.FileSystem, path: str, data: bytes = b"x") -> None:
    with filesystem.open_output_stream(path) as stream:
        stream.write(data)


def test_an_attempt_that_owns_the_run_reads_and_writes_as_on_the_plain_filesystem(rundir: RunDir, tmp_path: Path) -> None:
    filesystem = pickle.loads(pickle.dumps(fenced_filesystem(rundir.uri, 1)))
    filesystem.create_dir(f"{rundir.uri}/checkpoint_1")
    write(filesystem, f"{rundir.uri}/checkpoint_1/weights", b"abc")
    pyarrow.fs.copy_files(str(tmp_path / "run" / ".step"), f"{rundir.uri}/copied", destination_filesystem=filesystem)
    with filesystem.open_input_file(f"{rundir.uri}/checkpoint_1/weights") as file:
        assert file.read() == b"abc"
    assert (tmp_path / "run/copied/attempts/001.json").is_file()
    filesystem.delete_dir(f"{rundir.uri}/checkpoint_1")
    assert not (tmp_path / "run/checkpoint_1").exists()
    assert filesystem == fenced_filesystem(rundir.uri, 1) != fenced_filesystem(rundir.uri, 2)


def test_after_a_later_receipt_nothing_is_written_or_deleted(
    rundir: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timings, "FENCE_CACHE_S", 0.0)
    filesystem = fenced_filesystem(rundir.uri, 1)
    write(filesystem, f"{rundir.uri}/kept")
    write(filesystem, f"{rundir.uri}/{SNAPSHOT}", b"old")
    rundir.claim(2, "b", "j")
    for work in (
        lambda: write(filesystem, f"{rundir.uri}/new"),
        lambda: write(filesystem, f"{rundir.uri}/{SNAPSHOT}", b"new"),
        lambda: filesystem.delete_dir(rundir.uri),
        lambda: filesystem.delete_file(f"{rundir.uri}/kept"),
        lambda: filesystem.move(f"{rundir.uri}/kept", f"{rundir.uri}/moved"),
        lambda: filesystem.copy_file(f"{rundir.uri}/kept", f"{rundir.uri}/copy"),
        lambda: filesystem.create_dir(f"{rundir.uri}/folder"),
    ):
        with pytest.raises(FencedError, match="a later attempt owns"):
            work()
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [".step", SNAPSHOT, "kept"]
    assert (tmp_path / "run" / SNAPSHOT).read_bytes() == b"old"


def test_snapshots_and_deletions_are_checked_each_time_whatever_was_seen_before(rundir: RunDir) -> None:
    filesystem = fenced_filesystem(rundir.uri, 1)
    write(filesystem, f"{rundir.uri}/kept")
    rundir.claim(2, "b", "j")
    with pytest.raises(FencedError):
        write(filesystem, f"{rundir.uri}/{SNAPSHOT}")
    with pytest.raises(FencedError):
        filesystem.delete_file(f"{rundir.uri}/kept")


def test_the_snapshot_is_replaced_atomically_and_never_torn(rundir: RunDir, tmp_path: Path) -> None:
    filesystem = fenced_filesystem(rundir.uri, 1)
    write(filesystem, f"{rundir.uri}/{SNAPSHOT}", b"first")
    stream = filesystem.open_output_stream(f"{rundir.uri}/{SNAPSHOT}")
    stream.write(b"sec")
    assert (tmp_path / "run" / SNAPSHOT).read_bytes() == b"first", "what is half written is not seen"
    stream.write(b"ond")
    stream.close()
    assert (tmp_path / "run" / SNAPSHOT).read_bytes() == b"second"
