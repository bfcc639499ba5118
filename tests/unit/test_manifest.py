"""A checkpoint that differs from what was written is not used."""

import json
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from plugin_core import CheckpointRef
from plugin_core.errors import SpecError
from plugin_core.storage import checkpoint_manifest
from plugin_core.storage.location import Location


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    (folder / "parts").mkdir(parents=True)
    (folder / "model.bin").write_bytes(b"weights" * 1000)
    (folder / "parts" / "1.bin").write_bytes(b"part")
    files = checkpoint_manifest.describe(folder)
    (folder / ".manifest").mkdir()
    (folder / ".manifest" / "00000.json").write_text(json.dumps({"files": files}))
    return folder


def test_the_manifest_holds_sizes_and_crc_32s_of_all_files(checkpoint: Path) -> None:
    assert checkpoint_manifest.describe(checkpoint) == {
        "model.bin": [7000, zlib.crc32(b"weights" * 1000)],
        "parts/1.bin": [4, zlib.crc32(b"part")],
    }
    assert checkpoint_manifest.problem(Location.of(str(checkpoint))) == ""
    with CheckpointRef(uri=str(checkpoint)).as_directory() as folder:
        assert Path(folder, "model.bin").is_file()


def cut(folder: Path) -> None:
    with (folder / "model.bin").open("r+b") as file:
        file.truncate(10)


def remove(folder: Path) -> None:
    (folder / "parts" / "1.bin").unlink()


def tear(folder: Path) -> None:
    (folder / ".manifest" / "00000.json").write_text('{"files": {"mo')


def nest(folder: Path) -> None:
    (folder / ".manifest" / "00000.json").write_text("[" * 100_000)


def confuse(folder: Path) -> None:
    (folder / ".manifest" / "00000.json").write_text('{"files": {"model.bin": 1}}')


@pytest.mark.parametrize(
    ("damage", "found", "told"),
    [
        (cut, "model.bin has 10 of 7000 bytes", "model.bin is missing or truncated"),
        (remove, "parts/1.bin is missing", "parts/1.bin is missing or truncated"),
        (tear, ".manifest/00000.json is torn", ".manifest/00000.json is torn"),
        (nest, ".manifest/00000.json is torn", ".manifest/00000.json is torn"),
        (confuse, ".manifest/00000.json is torn", ".manifest/00000.json is torn"),
    ],
)
def test_damage_on_storage_is_found_and_reported(
    checkpoint: Path, damage: Callable[[Path], None], found: str, told: str
) -> None:
    damage(checkpoint)
    assert checkpoint_manifest.problem(Location.of(str(checkpoint))) == found
    with pytest.raises(SpecError) as caught, CheckpointRef(uri=str(checkpoint)).as_directory():
        pass
    assert caught.value.message == (
        f"checkpoint: got {str(checkpoint)!r}, which is damaged ({told}); expected an intact checkpoint"
    )


def test_changed_content_of_the_same_size_is_reported(checkpoint: Path) -> None:
    (checkpoint / "parts" / "1.bin").write_bytes(b"trap")
    with (
        pytest.raises(SpecError, match=r"parts/1.bin fails its CRC-32 check"),
        CheckpointRef(uri=str(checkpoint)).as_directory(),
    ):
        pass


def test_a_deleted_checkpoint_is_reported(tmp_path: Path) -> None:
    with (
        pytest.raises(SpecError, match=r"which does not exist or was deleted"),
        CheckpointRef(uri=str(tmp_path / "gone")).as_directory(),
    ):
        pass


def test_a_checkpoint_of_another_library_is_accepted_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"1")
    assert checkpoint_manifest.problem(Location.of(str(tmp_path))) == ""
    with CheckpointRef(uri=str(tmp_path)).as_directory() as folder:
        assert Path(folder, "model.bin").read_bytes() == b"1"


def test_a_file_that_two_ranks_wrote_is_intact_as_either_wrote_it(tmp_path: Path) -> None:
    """As Ray Train has it: of files with one name, those of whichever rank is last stay."""
    for rank, content in enumerate((b"of rank 0", b"by rank one")):
        (tmp_path / "state.bin").write_bytes(content)
        checkpoint_manifest.write(tmp_path, rank)
    for content in (b"of rank 0", b"by rank one"):
        (tmp_path / "state.bin").write_bytes(content)
        assert checkpoint_manifest.problem(Location.of(str(tmp_path))) == ""
        with CheckpointRef(uri=str(tmp_path)).as_directory():
            pass
    (tmp_path / "state.bin").write_bytes(b"of nobody")
    assert checkpoint_manifest.mismatch(tmp_path) == "state.bin fails its CRC-32 check"
