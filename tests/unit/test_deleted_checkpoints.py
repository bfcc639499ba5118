"""What a deletion leaves that was killed on its way through a checkpoint."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from plugin_core.runs.directory import RunDir
from plugin_core.runs.retention import prune
from plugin_core.storage import checkpoint_manifest, s3_backend
from plugin_core.storage.location import Location
from plugin_core.storage.s3_backend import S3Objects

NAME = "checkpoint_a001_000001"
FILES = [f".manifest/0000{rank}.json" for rank in range(2)] + ["a/b.pt", "z.pt"]


class Killed(BaseException):
    pass


def checkpoint(rundir: RunDir) -> Location:
    place = rundir.location.child(NAME)
    for rank, name in enumerate(FILES[2:]):
        place.child(*name.split("/")).write(b"x")
        manifest = json.dumps({"files": {name: [1, 0]}}).encode()
        place.child(checkpoint_manifest.FOLDER, f"0000{rank}.json").write(manifest)
    return place


@pytest.mark.parametrize("storage", ["local", "memory"])
@pytest.mark.parametrize("deletions", range(5))
def test_a_checkpoint_whose_deletion_was_killed_is_damaged_or_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, storage: str, deletions: int
) -> None:
    uri = str(tmp_path / "run") if storage == "local" else f"memory://{tmp_path.name}/run"
    rundir = RunDir.at(uri)
    place = checkpoint(rundir)
    left = [deletions]

    def counted(delete: Any) -> Any:
        def instead(*arguments: Any, **options: Any) -> Any:
            if not left[0]:
                raise Killed
            left[0] -= 1
            return delete(*arguments, **options)

        return instead

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", counted(os.unlink))
        patch.setattr(MemoryFileSystem, "rm_file", counted(MemoryFileSystem.rm_file))
        try:
            prune(rundir, NAME)
        except Killed:
            pass
    if deletions:
        assert not place.files() or checkpoint_manifest.problem(place)
    prune(rundir, NAME)
    assert not place.names()


def test_s3_deletes_a_manifest_in_the_last_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_backend, "BATCH", 3)
    deleted = []

    class Client:
        def get_paginator(self, operation: str) -> Any:
            return self

        def paginate(self, **given: Any) -> list[Any]:
            keys = [{"Key": f"run/{NAME}/{name}"} for name in FILES]
            return [{"Contents": keys[:3]}, {"Contents": keys[3:]}]

        def delete_objects(self, Bucket: str, Delete: Any) -> dict[str, Any]:
            deleted.append([entry["Key"].removeprefix(f"run/{NAME}/") for entry in Delete["Objects"]])
            return {}

    objects = S3Objects(None, {}, 1)
    objects._made = os.getpid(), Client()
    objects.delete_dir(f"bucket/run/{NAME}", last=checkpoint_manifest.FOLDER)
    assert deleted == [["a/b.pt", "z.pt", FILES[0]], [FILES[1]]]
