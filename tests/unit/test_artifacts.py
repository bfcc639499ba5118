"""Files that a worker leaves: kept by rank, bounded, written again if they changed."""

import logging
import os
import tempfile
from pathlib import Path

import pytest

from plugin_core import artifact_directory
from plugin_core.errors import FencedError
from plugin_core.loops.artifacts import Artifacts
from plugin_core.runs.directory import RunDir


@pytest.fixture
def rundir(tmp_path: Path) -> RunDir:
    rundir = RunDir.at(str(tmp_path / "run"))
    assert rundir.claim(1, "http://ray", "session_1", "ray")
    return rundir


def kept(rundir: RunDir) -> dict[str, bytes]:
    root = Path(rundir.location.path)
    files = sorted(file for file in (root / "artifacts").rglob("*") if file.is_file())
    return {file.relative_to(root).as_posix(): file.read_bytes() for file in files}


def test_files_in_the_folder_are_kept_by_rank_and_again_after_a_change(rundir: RunDir) -> None:
    artifacts = Artifacts(rundir.uri, 1, 3, 1000)
    artifacts.begin()
    (artifact_directory() / "plots").mkdir()
    (artifact_directory() / "plots" / "loss curve.png").write_bytes(b"one")
    artifacts.keep()
    assert kept(rundir) == {"artifacts/rank-003/plots/loss curve.png": b"one"}
    (artifact_directory() / "plots" / "loss curve.png").write_bytes(b"longer")
    folder = artifact_directory()
    artifacts.end()
    assert kept(rundir) == {"artifacts/rank-003/plots/loss curve.png": b"longer"}
    assert not folder.exists()
    with pytest.raises(RuntimeError, match="is only valid in a train loop"):
        artifact_directory()


def test_a_file_that_its_writer_renames_meanwhile_does_not_end_the_training(
    rundir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As profilers do, in threads of their own."""
    artifacts = Artifacts(rundir.uri, 1, 0, 1000)
    part = artifacts.directory() / "trace.part"
    part.write_bytes(b"one")
    stat = Path.stat

    def renamed(file: Path, **options: bool) -> os.stat_result:
        found = stat(file, **options)
        if file == part:
            file.rename(file.with_suffix(".json"))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", renamed)
        artifacts.keep()
    artifacts.end()
    assert kept(rundir) == {"artifacts/rank-000/trace.json": b"one"}


def test_files_beyond_the_limit_are_left_out_and_reported_once(rundir: RunDir, caplog: pytest.LogCaptureFixture) -> None:
    artifacts = Artifacts(rundir.uri, 1, 0, 10)
    (artifacts.directory() / "a").write_bytes(b"x" * 8)
    (artifacts.directory() / "b").write_bytes(b"x" * 8)
    (artifacts.directory() / "c").write_bytes(b"x" * 2)
    with caplog.at_level(logging.WARNING):
        artifacts.keep()
        artifacts.keep()
    assert list(kept(rundir)) == ["artifacts/rank-000/a", "artifacts/rank-000/c"]
    (record,) = caplog.records
    assert "skipping b (8 bytes): with what is stored it exceeds limits.artifact_bytes=10" in record.message


def test_a_later_attempt_owns_the_folder(rundir: RunDir) -> None:
    artifacts = Artifacts(rundir.uri, 1, 0, 1000)
    (artifacts.directory() / "a").write_bytes(b"old")
    assert rundir.claim(2, "http://ray", "session_1", "ray")
    with pytest.raises(FencedError):
        artifacts.end()
    assert kept(rundir) == {}


def test_artifacts_that_storage_refuses_are_tried_again(
    rundir: RunDir, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifacts = Artifacts(rundir.uri, 1, 0, 1000)
    (artifacts.directory() / "a").write_bytes(b"1")
    root = Path(rundir.location.path)
    (root / "artifacts").write_text("a file stands where the folder is to be")
    with caplog.at_level(logging.WARNING):
        artifacts.keep()
    assert "retrying with the next checkpoint" in caplog.text
    (root / "artifacts").unlink()
    artifacts.keep()
    assert kept(rundir) == {"artifacts/rank-000/a": b"1"}


def test_a_killed_loop_without_artifacts_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    artifacts = Artifacts(RunDir.at(str(tmp_path / "run")).uri, 1, 0, 1000)
    artifacts.begin()
    artifacts.keep()
    assert list((tmp_path / "temporary").iterdir()) == []
    artifacts.end()
