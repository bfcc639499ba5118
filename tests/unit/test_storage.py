"""Local storage; the same contract over S3 is in tests/integration/test_s3.py."""

from pathlib import Path

import pytest

from plugin_core.errors import SpecError, StorageError
from plugin_core.storage import Location
from tests.storage_contract import StorageContract


class TestLocal(StorageContract):
    @pytest.fixture
    def root(self, tmp_path: Path) -> Location:
        return Location.of(str(tmp_path / "with space and ü"))


def test_a_directory_that_cannot_be_read_is_an_error_and_not_absence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be read"):
        Location.of(str(tmp_path / "file")).child("below").read()


def test_a_crashed_write_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Location.of(str(tmp_path / "x"))
    place.write(b"old")

    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", no_space)
    with pytest.raises(StorageError, match="No space left on device"):
        place.write(b"new")
    assert place.read() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("ftp://host/x", "accepted are a local path and the schemes file, s3"),
        ("s3:///x", "accepted is s3://bucket/prefix"),
        ("s3://k:s@b/x", "credentials do not belong into a URI"),
        ("", "accepted is a local path or a URI"),
    ],
)
def test_what_is_no_place_is_refused(uri: str, words: str) -> None:
    with pytest.raises(SpecError, match=words) as caught:
        Location.of(uri, "output_path")
    assert caught.value.message.startswith("output_path: given")


def test_a_file_uri_is_a_local_path() -> None:
    assert Location.of("file:///tmp/x") == Location.of("/tmp/x")


def test_a_child_keeps_the_options_of_the_uri() -> None:
    place = Location.of("s3://bucket/prefix?endpoint_override=127.0.0.1:1&scheme=http").child("run", ".step")
    assert place.uri == "s3://bucket/prefix/run/.step?endpoint_override=127.0.0.1:1&scheme=http"
    assert place.path == "bucket/prefix/run/.step"
