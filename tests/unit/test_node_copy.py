"""One local copy of a checkpoint for the processes of a node: real processes, a filesystem that notes each read."""

import json
import multiprocessing
import os
import pickle
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

from devtools.chaos import wait_until
from plugin_core import CheckpointRef
from plugin_core.errors import SpecError, StorageError
from plugin_core.storage import checkpoint_manifest

SPAWN = multiprocessing.get_context("spawn")
FILES = {f"{number}.bin": bytes([number]) * 50_000 for number in range(8)}


class Noting(DirFileSystem):  # type: ignore[misc]
    """A folder as a storage that is not known to be this machine's; each file read is a line of `reads` beside it, and a
    read of a file named in `hold` does not come back."""

    def open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        if mode == "rb":
            with open(f"{self.path}.reads", "a") as stream:
                stream.write(f"{Path(path).name}\n")
            while Path(f"{self.path}.hold").exists() and Path(f"{self.path}.hold").read_text() == Path(path).name:
                time.sleep(0.01)
        return super().open(path, mode, **kwargs)


def noting(at: str) -> Any:
    return Noting(path=at, fs=LocalFileSystem(auto_mkdir=True))


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder behind the storage, with a checkpoint in it; what is left of copies at the end fails the test."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setenv("RAYTRAIN_FILESYSTEMS", f"{__name__}:noting")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", None)
    write(tmp_path / "storage" / "first")
    yield tmp_path / "storage"
    assert left(tmp_path) == []


def write(folder: Path) -> None:
    (folder / ".manifest").mkdir(parents=True)
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    (folder / ".manifest" / "00000.json").write_text(json.dumps({"files": checkpoint_manifest.describe(folder)}))


def uri_of(at: Path, name: str = "first") -> str:
    return f"custom://{name}?filesystem={__name__}:noting&at={at}"


def left(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "tmp").glob("raytrain-checkpoints-*/*"))


def reads(at: Path) -> list[str]:
    noted = Path(f"{at}.reads")
    return noted.read_text().split() if noted.exists() else []


def check(folder: str) -> None:
    for name, content in FILES.items():
        assert Path(folder, name).read_bytes() == content


def read_together(uri: str, together: Barrier) -> None:
    with CheckpointRef(uri=uri).as_directory() as folder:
        together.wait(60)  # all are inside at once
        check(folder)


def read_often(uri: str, together: Barrier) -> None:
    together.wait(60)
    for _ in range(40):
        with CheckpointRef(uri=uri).to_ray().as_directory() as folder:
            check(folder)


def read_until_killed(uri: str, inside: Any) -> None:
    with CheckpointRef(uri=uri).as_directory():
        inside.set()
        time.sleep(600)


def in_processes(target: Callable[..., None], count: int, uri: str) -> None:
    together = SPAWN.Barrier(count)
    processes = [SPAWN.Process(target=target, args=(uri, together)) for _ in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * count


def test_the_processes_of_a_node_download_a_checkpoint_once(at: Path) -> None:
    in_processes(read_together, 3, uri_of(at))
    assert sorted(reads(at)) == sorted([*FILES, "00000.json"])


@pytest.mark.slow
def test_readers_that_come_and_go_read_a_whole_copy(at: Path) -> None:
    in_processes(read_often, 3, uri_of(at))


@contextmanager
def reading(uri: str) -> Iterator[Any]:
    """Another process that reads until it is killed at the end; yields the event that it sets once it reads."""
    inside = SPAWN.Event()
    process = SPAWN.Process(target=read_until_killed, args=(uri, inside))
    process.start()
    try:
        yield inside
    finally:
        process.kill()
        process.join()


def test_the_copy_of_a_killed_reader_is_used_and_then_removed(at: Path, tmp_path: Path) -> None:
    with reading(uri_of(at)) as inside:
        assert inside.wait(60)
    assert len(left(tmp_path)) == 2, "the copy and its lock"
    with CheckpointRef(uri=uri_of(at)).as_directory() as folder:
        check(folder)
    assert len(reads(at)) == len(FILES) + 1


def test_the_leftovers_of_a_killed_download_are_never_read(at: Path, tmp_path: Path) -> None:
    hold = Path(f"{at}.hold")
    hold.write_text("7.bin")
    with reading(uri_of(at)):
        wait_until(lambda: "7.bin" in reads(at))
    assert any(name.endswith(".part") for name in left(tmp_path))
    hold.unlink()
    with CheckpointRef(uri=uri_of(at)).as_directory() as folder:
        check(folder)


def test_a_reader_of_another_checkpoint_removes_what_a_killed_reader_left(at: Path, tmp_path: Path) -> None:
    write(at / "second")
    with reading(uri_of(at)) as inside:
        assert inside.wait(60)
        with CheckpointRef(uri=uri_of(at, "second")).as_directory():
            assert len(left(tmp_path)) == 4, "one that is read stays"
    with CheckpointRef(uri=uri_of(at, "second")).as_directory():
        assert len(left(tmp_path)) == 2


def test_a_rewritten_checkpoint_is_downloaded_again(at: Path) -> None:
    checkpoint = CheckpointRef(uri=uri_of(at))
    with checkpoint.as_directory() as folder:
        (at / "first" / "new.bin").write_bytes(b"new")
        with checkpoint.as_directory() as another:
            assert Path(another, "new.bin").read_bytes() == b"new"
        check(folder)


def test_it_travels_as_its_uri(at: Path) -> None:
    checkpoint = CheckpointRef(uri=uri_of(at)).to_ray()
    travelled = pickle.loads(pickle.dumps(checkpoint))
    with checkpoint.as_directory() as here, travelled.as_directory() as there:
        assert here == there
        check(there)


def test_a_damaged_checkpoint_is_reported_each_time_and_not_kept(at: Path) -> None:
    (at / "first" / "3.bin").write_bytes(b"x" * 50_000)
    for _ in range(2):
        with (
            pytest.raises(SpecError, match=r"3.bin fails its CRC-32 check"),
            CheckpointRef(uri=uri_of(at)).to_ray().as_directory(),
        ):
            pass


def test_a_checkpoint_that_is_gone_is_reported(at: Path) -> None:
    with (
        pytest.raises(SpecError, match=r"which does not exist or was deleted"),
        CheckpointRef(uri=uri_of(at, "gone")).to_ray().as_directory(),
    ):
        pass


def test_a_folder_of_another_user_is_refused(at: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "tmp" / f"raytrain-checkpoints-{os.getuid()}").symlink_to(elsewhere)
    os.lchown(tmp_path / "tmp" / f"raytrain-checkpoints-{os.getuid()}", 12345, 12345)
    with (
        pytest.raises(StorageError, match="belongs to another user"),
        CheckpointRef(uri=uri_of(at)).as_directory(),
    ):
        pass
