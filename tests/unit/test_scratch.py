"""Temporary folders of processes that end, fork or are killed: real processes."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from plugin_core.errors import StorageError
from plugin_core.storage import locked_folders
from plugin_core.storage import scratch as module
from plugin_core.storage.scratch import scratch

PRINTS = "from plugin_core.storage.scratch import scratch; print(scratch(), flush=True)"


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of all processes, of this test alone."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(module, "_own", None)
    yield tmp_path / f"raytrain-scratch-{os.getuid()}"
    if module._own is not None:
        os.close(module._own.lock)


@contextmanager
def other_process(code: str = "input()") -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that has a folder, and the folder."""
    command = [sys.executable, "-c", f"{PRINTS}; {code}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def test_the_folder_of_a_killed_process_is_removed_by_the_next_one_and_a_living_ones_is_not(root: Path) -> None:
    with other_process() as (_, living), other_process() as (process, killed):
        (killed / "checkpoint").mkdir()
        (killed / "checkpoint" / "model.bin").write_bytes(b"half")
        process.kill()
        process.wait()
        assert killed.is_dir()
        mine = scratch()
        assert sorted(path.name for path in root.iterdir() if path.is_dir()) == sorted([living.name, mine.name])


def test_a_process_has_one_folder_and_removes_it_when_it_exits(root: Path) -> None:
    code = "(scratch() / 'file').touch(); print(scratch(), flush=True)"
    with other_process(code) as (process, folder):
        assert process.stdout is not None
        assert process.stdout.readline().strip() == str(folder)
        assert process.wait(60) == 0
        assert list(root.iterdir()) == []


def test_a_fork_has_a_folder_of_its_own_and_leaves_its_parents(root: Path) -> None:
    with other_process(f"{FORKS}; input()") as (process, folder):
        assert process.stdout is not None
        of_fork, of_parent = (Path(process.stdout.readline().strip()) for _ in range(2))
        assert of_parent == folder
        assert of_fork.parent == root
        assert [path.name for path in root.iterdir() if path.is_dir()] == [folder.name]


#: The fork prints its folder and exits as a process does; then its parent prints its own.
FORKS = "import os, sys; pid = os.fork(); pid and os.waitpid(pid, 0); print(scratch(), flush=True); pid or sys.exit()"


def test_a_folder_that_a_cleaner_of_tmp_removed_is_made_again(root: Path) -> None:
    before = scratch()
    shutil.rmtree(root)
    again = scratch()
    assert again != before
    assert again.is_dir()


def test_a_folder_that_is_swept_before_it_is_locked_is_made_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    swept: list[Path] = []

    def opened(path: Path) -> int:
        lock = locked_folders.opened(path)
        if not swept:
            locked_folders.sweep(root, besides="")  # as another process that begins at this moment
            swept.append(path)
        return lock

    monkeypatch.setattr(module, "opened", opened)
    folder = scratch()
    assert not swept[0].exists()
    assert sorted(path.name for path in root.iterdir()) == [folder.name, f"{folder.name}.lock"]


def test_a_folder_of_another_user_is_refused(root: Path, tmp_path: Path) -> None:
    root.symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (tmp_path / "elsewhere").mkdir()
    os.lchown(root, 12345, 12345)
    with pytest.raises(StorageError, match=r"the folder for temporary files, belongs to another user; set TMPDIR"):
        scratch()
