"""The checkpoints on one node's disk, without Ray: whole or told, in pieces between nodes, and what is removed when."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from plugin_core.driver.train.tiers.disk import KEPT, Disk, write_chunk
from plugin_core.errors import StorageError
from plugin_core.storage.checkpoint_manifest import order

NAME = "checkpoint_a001_000001"


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    made = Disk(str(tmp_path / "nodes"), "one", "ab-0")
    made.prepare()
    return made


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "deep").mkdir(parents=True)
    (folder / "weights.bin").write_bytes(bytes(range(256)) * 100_000)
    (folder / "deep" / "empty").touch()
    return folder


def names(disk: Disk) -> list[str]:
    return sorted(path.name for path in disk.place.iterdir())


def test_a_part_is_whole_or_told(disk: Disk, source: Path) -> None:
    part = disk.keep(NAME, 0, source)
    assert disk.problems(NAME, [0, 1]) == {0: "", 1: "it is missing"}
    data = bytearray((part / "weights.bin").read_bytes())
    data[1000] ^= 1
    (part / "weights.bin").write_bytes(data)
    assert "weights.bin fails its CRC-32 check" in disk.problems(NAME, [0])[0]
    (part / "deep" / "empty").unlink()
    (part / "weights.bin").write_bytes(bytes(range(256)) * 100_000)
    assert "empty is missing" in disk.problems(NAME, [0])[0]


def test_a_copy_that_fails_half_way_leaves_what_was_there(disk: Disk, source: Path) -> None:
    disk.keep(NAME, 0, source)
    (source / "weights.bin").unlink()
    (source / "weights.bin").symlink_to("nowhere")
    with pytest.raises(OSError, match="No such file"):
        disk.keep(NAME, 0, source)
    assert disk.problems(NAME, [0]) == {0: ""}
    assert [path.name for path in (disk.place / NAME).iterdir()] == ["00000"]


def test_what_a_linked_folder_has_is_kept_and_checked(disk: Disk, source: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "tokens").write_text("abc")
    (source / "linked").symlink_to(tmp_path / "elsewhere")
    part = disk.keep(NAME, 0, source)
    (tmp_path / "elsewhere" / "tokens").unlink()
    assert disk.problems(NAME, [0]) == {0: ""}
    (part / "linked" / "tokens").write_text("abd")
    assert "linked/tokens fails its CRC-32 check" in disk.problems(NAME, [0])[0]


def test_a_part_travels_in_pieces(disk: Disk, source: Path) -> None:
    disk.keep(NAME, 3, source)
    peer = replace(disk, node="two")
    peer.prepare()
    with peer.new_part(NAME, 3) as part:
        for piece in disk.read(NAME, 3):
            write_chunk(part, *piece)
    assert peer.problems(NAME, [3]) == {3: ""}
    with pytest.raises(FileNotFoundError, match="was removed"):
        list(disk.read("checkpoint_a001_000009", 3))


@pytest.mark.parametrize("path", ["../out", "/etc/out", "deep/../../out"])
def test_a_piece_stays_in_its_folder(tmp_path: Path, path: str) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(ValueError, match="expected one inside the checkpoint"):
        write_chunk(tmp_path / "in", path, 0, b"data")


def test_the_newest_stay_and_those_on_their_way_to_storage(disk: Disk, source: Path) -> None:
    (source / "weights.bin").write_bytes(b"small")
    for attempt, number in [(1, 8), (1, 9), (1, 10), (2, 1), (2, 2)]:
        disk.keep(f"checkpoint_a{attempt:03}_{number:06}", 0, source)
        disk.prune(0, frozenset(["checkpoint_a001_000008"]))
    kept = ["checkpoint_a001_000008", "checkpoint_a001_000010", "checkpoint_a002_000001", "checkpoint_a002_000002"]
    assert names(disk) == kept
    assert len(kept) == KEPT + 1
    assert order("checkpoint_a002_000001") > order("checkpoint_a001_000010")


def test_an_earlier_generation_of_the_run_goes_and_another_run_stays(disk: Disk, source: Path) -> None:
    disk.keep(NAME, 0, source)
    other = replace(disk, key="cd-0")
    other.prepare()
    replace(disk, key="ab-2").prepare()
    assert not disk.place.exists()
    assert other.place.exists()
    other.remove()
    assert not other.place.exists()


def test_the_folder_must_be_ours(tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be written"):
        Disk(str(tmp_path / "file"), "one", "ab-0").prepare()
    lstat = Path.lstat
    monkeypatch.setattr(Path, "lstat", lambda self: SimpleNamespace(st_uid=lstat(self).st_uid + 1))
    with pytest.raises(StorageError, match="belongs to another user"):
        disk.prepare()
