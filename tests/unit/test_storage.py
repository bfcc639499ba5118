"""Local storage; the same contract over S3 is in tests/integration/test_s3.py."""

import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fsspec
import pytest

from plugin_core.errors import FencedError, SpecError, StorageError
from plugin_core.runs.directory import RunDir
from plugin_core.runs.fence import Fence
from plugin_core.storage.filesystems import backend
from plugin_core.storage.fsspec_backend import FSSPEC
from plugin_core.storage.location import Location
from tests.support.storage_contract import StorageContract


class TestLocal(StorageContract):
    @pytest.fixture
    def root(self, tmp_path: Path) -> Location:
        return Location.of(str(tmp_path / "with space and ü"))


class TestMemory(StorageContract):
    @pytest.fixture
    def root(self, request: pytest.FixtureRequest) -> Location:
        return Location.of(f"memory://contract/{request.node.name}")


def own_filesystem(**options: str) -> object:
    """What `custom://` names."""
    assert options == {"colour": "blue"}
    return fsspec.filesystem("memory")


class TestCustom(StorageContract):
    @pytest.fixture
    def root(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Location:
        monkeypatch.setenv("RAYTRAIN_FILESYSTEMS", "tests.unit.test_storage:own_filesystem")
        function = "filesystem=tests.unit.test_storage:own_filesystem&colour=blue"
        return Location.of(f"custom://own/{request.node.name}?{function}")


WITHOUT_CREATE = ("folder_of_local", "cached", "cached_memory", "local")


@pytest.mark.parametrize("kind", WITHOUT_CREATE)
def test_a_filesystem_that_cannot_create_without_a_race_holds_data_but_no_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    function = f"tests.unit.test_storage:{kind}"
    monkeypatch.setenv("RAYTRAIN_FILESYSTEMS", f"another:one, {function}")
    place = Location.of(f"custom://x{tmp_path}/file?filesystem={function}")
    with pytest.raises(SpecError, match="which cannot create files atomically"):
        place.create(b"1")
    assert place.read() is None


def folder_of_local() -> object:
    return fsspec.filesystem("dir", path="/tmp", fs=fsspec.filesystem("file"))


def local() -> object:
    return fsspec.filesystem("file", auto_mkdir=True)


def cached() -> object:
    """It writes into its own folder first, then overwrites whatever exists."""
    return fsspec.filesystem("simplecache", fs=fsspec.filesystem("file"))


def cached_memory() -> object:
    """The filesystem below creates atomically; a cache in front of it does not show what others wrote."""
    return fsspec.filesystem("filecache", fs=fsspec.filesystem("memory"))


def folder_of_memory() -> object:
    return fsspec.filesystem("dir", path="/folder", fs=fsspec.filesystem("memory"))


def test_a_folder_of_a_filesystem_creates_as_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYTRAIN_FILESYSTEMS", "tests.unit.test_storage:folder_of_memory")
    place = Location.of("custom://x/file?filesystem=tests.unit.test_storage:folder_of_memory")
    assert place.create(b"1")
    assert not place.create(b"2")
    assert place.read() == b"1"


def test_a_secret_option_names_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Location.of("s3fs://bucket/x?key=$OUR_KEY&secret=$OUR_SECRET&anon=false")
    monkeypatch.delenv("OUR_KEY", raising=False)
    monkeypatch.setenv("RAYTRAIN_URI_VARIABLES", "OUR_KEY,OUR_SECRET")
    with pytest.raises(
        SpecError, match=r"storage_path: got key=\$OUR_KEY; the environment variable OUR_KEY is not set here"
    ):
        place.read()
    monkeypatch.setenv("OUR_KEY", "hunter2")
    monkeypatch.setenv("OUR_SECRET", "hunter3")
    opened = place.fs.handler.fs
    assert (opened.key, opened.secret, opened.anon) == ("hunter2", "hunter3", False)
    assert "hunter" not in repr(place)


@pytest.mark.parametrize(
    ("uri", "package"),
    [
        ("gs://bucket/runs?project=p", "gcsfs"),
        ("gcsfs://bucket/runs", "gcsfs"),
        ("abfs://box@account.dfs.core.windows.net/runs", "adlfs"),
    ],
)
def test_a_storage_whose_package_is_missing_names_the_package(
    uri: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, FSSPEC[urlsplit(uri).scheme].module, raising=False)
    backend.cache_clear()
    with pytest.raises(SpecError, match=f"its package is not installed: pip install {package}"):
        _ = Location.of(uri).fs


def test_an_azure_uri_has_the_container_before_the_account() -> None:
    place = Location.of("abfs://box@account.dfs.core.windows.net/runs").child("x")
    assert place.path == "box/runs/x"


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
        ("ftp://host/x", "expected a local path or a URI with scheme file, s3"),
        ("hdfs://namenode:8020/runs", "expected a local path or a URI with scheme file, s3"),
        ("s3:///x", "expected s3://bucket/prefix"),
        ("s3://k:s@b/x", "with credentials; expected a URI without them"),
        (
            "s3://b/x?secret_key=hunter2",
            r"got s3://b\?secret_key=…; a secret must be given as the name",
        ),
        ("s3fs://b/x?key=hunter2", r"the name of an environment variable, expected key=\$NAME"),
        ("custom://b/x", r"expected custom://folder\?filesystem=package.module:function"),
        ("", "expected a local path or a URI"),
    ],
)
def test_a_value_that_is_not_a_location_is_refused(uri: str, words: str) -> None:
    with pytest.raises(SpecError, match=words) as caught:
        Location.of(uri, "output_path")
    assert caught.value.message.startswith("output_path: got")


def test_a_file_uri_is_a_local_path() -> None:
    assert Location.of("file:///tmp/x") == Location.of("/tmp/x")


def test_a_child_keeps_the_options_of_the_uri() -> None:
    place = Location.of("s3://bucket/prefix?endpoint_override=127.0.0.1:1&scheme=http").child("run", ".step")
    assert place.uri == "s3://bucket/prefix/run/.step?endpoint_override=127.0.0.1:1&scheme=http"
    assert place.path == "bucket/prefix/run/.step"


def test_the_fence_lists_its_folder_because_a_mount_may_cache_an_absent_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS caches that a name is absent for up to a minute, but looks again when a folder is opened."""
    rundir = RunDir.at(str(tmp_path / "run"))
    rundir.claim(1, "a", "i")
    fence = Fence(rundir.uri, 1)
    fence.check()
    rundir.claim(2, "a", "i")
    stat = os.stat

    def from_memory(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        if str(path).endswith("002.json"):
            raise FileNotFoundError(path)
        return stat(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", from_memory)
    monkeypatch.setattr(Location, "exists", lambda place: False)
    with pytest.raises(FencedError):
        fence.check()
