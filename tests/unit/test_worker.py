"""What a worker passes to Ray in a report, and what it gets to resume from."""

import pickle
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from ray.train import Checkpoint

from plugin_core.driver.fenced_filesystem import fenced_filesystem
from plugin_core.driver.train.worker import _safe_metrics, for_the_node
from plugin_core.runs.directory import RunDir


@pytest.mark.parametrize(
    ("metrics", "score", "expected"),
    [
        ({"loss": float("nan"), "a": np.float32(0.5)}, None, {"loss": None, "a": 0.5}),
        ({"loss": float("nan"), "a": 1}, "loss", {"a": 1}),
        ({"loss": 0.5, "a": float("inf")}, "loss", {"loss": 0.5, "a": None}),
        ({"eval": {"loss": float("nan"), "b": 1}}, "eval/loss", {"eval": {"b": 1}}),
    ],
)
def test_metrics_are_json_safe_and_a_score_that_is_not_a_number_is_left_out(
    metrics: dict[str, Any], score: str | None, expected: dict[str, Any]
) -> None:
    """Ray multiplies a checkpoint's score, which fails for null; without a score the checkpoint ranks last."""
    assert _safe_metrics(metrics, score) == expected


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
    first, second = (for_the_node(pickle.loads(pickle.dumps(rays)), run_uri) for _ in range(2))
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


def test_a_checkpoint_from_elsewhere_is_left_unchanged(tmp_path: Path) -> None:
    elsewhere = Checkpoint(str(tmp_path / "another" / "checkpoint"))
    assert for_the_node(elsewhere, str(tmp_path / "run")) is elsewhere
