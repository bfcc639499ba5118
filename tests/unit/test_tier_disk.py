"""The checkpoints on one node's disk, without Ray: whole or told, in pieces between nodes, and what is removed when."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from plugin_core.driver.train.tiers.checkpoint import NodesCheckpoint
from plugin_core.driver.train.tiers.disk import KEPT, Disk, write_chunk
from plugin_core.driver.train.tiers.records import Record
from plugin_core.errors import InfrastructureError, StorageError
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
    assert disk.problems(NAME, {0: "", 1: ""}) == {0: "", 1: "it is missing"}
    data = bytearray((part / "weights.bin").read_bytes())
    data[1000] ^= 1
    (part / "weights.bin").write_bytes(data)
    assert "weights.bin fails its CRC-32 check" in disk.problems(NAME, {0: ""})[0]
    (part / "deep" / "empty").unlink()
    (part / "weights.bin").write_bytes(bytes(range(256)) * 100_000)
    assert "empty is missing" in disk.problems(NAME, {0: ""})[0]


def test_a_copy_that_fails_half_way_leaves_what_was_there(disk: Disk, source: Path) -> None:
    disk.keep(NAME, 0, source)
    (source / "weights.bin").unlink()
    (source / "weights.bin").symlink_to("nowhere")
    with pytest.raises(OSError, match="No such file"):
        disk.keep(NAME, 0, source)
    assert disk.problems(NAME, {0: ""}) == {0: ""}
    assert [path.name for path in (disk.place / NAME).iterdir()] == ["00000"]


def test_what_a_linked_folder_has_is_kept_and_checked(disk: Disk, source: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "tokens").write_text("abc")
    (source / "linked").symlink_to(tmp_path / "elsewhere")
    part = disk.keep(NAME, 0, source)
    (tmp_path / "elsewhere" / "tokens").unlink()
    assert disk.problems(NAME, {0: ""}) == {0: ""}
    (part / "linked" / "tokens").write_text("abd")
    assert "linked/tokens fails its CRC-32 check" in disk.problems(NAME, {0: ""})[0]


def test_a_part_travels_in_pieces(disk: Disk, source: Path) -> None:
    disk.keep(NAME, 3, source)
    peer = replace(disk, node="two")
    peer.prepare()
    with peer.new_part(NAME, 3) as part:
        for piece in disk.read(NAME, 3):
            write_chunk(part, *piece)
    assert peer.problems(NAME, {3: ""}) == {3: ""}
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


def test_what_a_killed_process_left_goes_with_the_next_part(disk: Disk, source: Path) -> None:
    disk.new_part(NAME, 0).__enter__()
    other = disk.new_part(NAME, 1).__enter__()
    disk.keep("checkpoint_a001_000002", 0, source)
    assert list(disk.place.glob("*/.00000.*")) == []
    assert other.is_dir(), "another rank's may be in use"


def test_a_part_that_lost_workers_made_is_not_taken_for_that_of_the_next(disk: Disk, source: Path) -> None:
    disk.keep(NAME, 0, source)
    theirs = disk.digest(NAME, 0)
    (source / "weights.bin").write_bytes(b"other weights")
    disk.keep(NAME, 0, source)
    assert disk.problems(NAME, {0: disk.digest(NAME, 0)}) == {0: ""}
    assert disk.problems(NAME, {0: theirs}) == {0: "workers that were lost made it"}


def test_a_run_that_continues_after_weeks_keeps_its_parts(disk: Disk, source: Path) -> None:
    disk.keep(NAME, 0, source)
    elsewhere = replace(disk, node="two")
    elsewhere.prepare()
    for place in (disk.place, elsewhere.place):
        os.utime(place, (0, 0))
    disk.prepare()
    assert disk.problems(NAME, {0: ""}) == {0: ""}
    assert elsewhere.place.is_dir(), "another Ray node on this machine"


def on_node(disk: Disk, nodes: dict[int, list[str]]) -> NodesCheckpoint:
    return NodesCheckpoint(Record(NAME, 1, 1, nodes), disk)


def test_one_file_of_a_checkpoint_on_the_nodes_is_read_from_the_rank_that_has_it(disk: Disk, source: Path) -> None:
    (source / "rows.json").write_text("{}")
    disk.keep(NAME, 0, source)
    (source / "rows.json").unlink()
    disk.keep(NAME, 1, source)
    checkpoint = on_node(disk, {1: ["one"], 0: ["one"]})
    assert checkpoint.read_file("rows.json") == b"{}"
    assert checkpoint.read_file("no.json") is None


def test_a_part_that_is_gone_is_a_loss_of_the_cluster_not_of_the_loop(disk: Disk) -> None:
    checkpoint = on_node(disk, {0: ["one"]})
    with pytest.raises(InfrastructureError, match=f"the copy of {NAME} on node one is gone"):
        checkpoint.read_file("rows.json")
    with pytest.raises(InfrastructureError, match=f"the copy of {NAME} on node one is gone"), checkpoint.as_directory():
        pass


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
