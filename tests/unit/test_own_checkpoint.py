"""The run's own checkpoints, as its workers read them."""

import pickle
from pathlib import Path
from typing import Any

import fsspec
import pytest
from ray.train import Checkpoint

from plugin_core.driver.fenced_filesystem import fenced_filesystem
from plugin_core.driver.train.own_checkpoint import own
from plugin_core.errors import DamagedCheckpointError
from plugin_core.runs.directory import RunDir
from plugin_core.storage import checkpoint_manifest


@pytest.mark.parametrize("kind", ["local", "remote"])
def test_a_checkpoint_in_use_by_another_worker_is_not_downloaded_again(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's own is downloaded again by the second worker of a node."""
    monkeypatch.setenv("RAYTRAIN_FILESYSTEMS", f"{__name__}:mounted")
    run_uri = str(tmp_path / "run") if kind == "local" else f"custom://own/run?filesystem={__name__}:mounted&at={tmp_path}"
    place = RunDir.at(run_uri).location.child("checkpoint_a001_000001")
    place.child("model.txt").write(b"a model")
    rays = Checkpoint(place.path, fenced_filesystem(run_uri, 1))
    first, second = (own(pickle.loads(pickle.dumps(rays)), run_uri) for _ in range(2))
    with first.as_directory() as one:
        written = Path(one, "model.txt").stat()
        with second.as_directory() as two:
            assert one == two
            assert (one == place.path) == (kind == "local"), "nothing is copied from a path of this machine"
        again = Path(one, "model.txt").stat()
        assert (again.st_ino, again.st_mtime_ns) == (written.st_ino, written.st_mtime_ns)
        assert Path(one, "model.txt").read_bytes() == b"a model"


def mounted(at: str) -> Any:
    """A filesystem that is not known to be this machine's."""
    return fsspec.filesystem("dir", path=at, target_protocol="file", target_options={"auto_mkdir": True})


@pytest.mark.parametrize("kind", ["local", "remote"])
@pytest.mark.parametrize("what", ["is damaged (model.txt fails its CRC-32 check)", "does not exist or was deleted"])
def test_damage_of_a_checkpoint_of_the_run_is_told_by_its_name(
    tmp_path: Path, kind: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYTRAIN_FILESYSTEMS", f"{__name__}:mounted")
    run_uri = str(tmp_path / "run") if kind == "local" else f"custom://own/run?filesystem={__name__}:mounted&at={tmp_path}"
    name = "checkpoint_a001_000001"
    place = RunDir.at(run_uri).location.child(name)
    if "damaged" in what:
        (tmp_path / "made").mkdir()
        (tmp_path / "made" / "model.txt").write_bytes(b"a model")
        checkpoint_manifest.write(tmp_path / "made", 0)
        place.child(".manifest", "00000.json").write((tmp_path / "made" / ".manifest" / "00000.json").read_bytes())
        place.child("model.txt").write(b"a modem")
    for _ in range(2):
        with (
            pytest.raises(DamagedCheckpointError) as caught,
            own(Checkpoint(place.path, fenced_filesystem(run_uri, 1)), run_uri).as_directory(),
        ):
            pass
        travelled = pickle.loads(pickle.dumps(caught.value))
        assert (travelled.message, travelled.checkpoint) == (f"{name} {what}", name)


def test_a_checkpoint_from_elsewhere_is_left_unchanged(tmp_path: Path) -> None:
    elsewhere = Checkpoint(str(tmp_path / "another" / "checkpoint"))
    assert own(elsewhere, str(tmp_path / "run")) is elsewhere
