"""Whether a storage can hold runs is found out once, by trying."""

import json
import threading
from pathlib import Path

import fsspec
import pytest

from plugin_core import RunConfig, run
from plugin_core.clusters.fake import FakeCluster
from plugin_core.errors import SpecError
from plugin_core.storage import proof
from plugin_core.storage.location import Location
from tests.support.fake_steps import spec_at


@pytest.fixture(autouse=True)
def another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has proven nothing yet."""
    monkeypatch.setattr(proof, "_proven", set())


def custom(kind: str, monkeypatch: pytest.MonkeyPatch) -> str:
    function = f"{__name__}:{kind}"
    monkeypatch.setenv("RAYTRAIN_FILESYSTEMS", function)
    return f"custom://proof/{kind}?filesystem={function}"


class _Own(fsspec.AbstractFileSystem):
    """An unknown filesystem, with its own way to write."""

    protocol = "own"
    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.memory = fsspec.filesystem("memory")

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: object) -> None:
        if mode == "create" and self.looked_up(path):
            raise FileExistsError(path)
        self.memory.pipe_file(path, value)

    def looked_up(self, path: str) -> bool:
        raise NotImplementedError

    def __getattribute__(self, name: str) -> object:
        if name in ("ls", "info", "open", "rm", "cat_file", "rm_file", "makedirs", "mkdir"):
            return getattr(object.__getattribute__(self, "memory"), name)
        return object.__getattribute__(self, name)


class Ignoring(_Own):
    def looked_up(self, path: str) -> bool:
        return False


class LookingFirst(_Own):
    """All look before anybody writes, as can happen on a network."""

    def __init__(self) -> None:
        super().__init__()
        self.all_looked = threading.Barrier(proof.CREATORS)

    def looked_up(self, path: str) -> bool:
        there = bool(self.memory.exists(path))
        if not there:
            self.all_looked.wait()
        return there


class Locking(_Own):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def looked_up(self, path: str) -> bool:
        return bool(self.memory.exists(path))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: object) -> None:
        with self.lock:
            super().pipe_file(path, value, mode, **kwargs)


class Mute(_Own):
    def pipe_file(self, path: str, value: bytes) -> None:  # type: ignore[override]
        self.memory.pipe_file(path, value)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("Ignoring", "where 4 of 4 concurrent creators of one file succeeded"),
        ("LookingFirst", "where 4 of 4 concurrent creators of one file succeeded"),
        ("Mute", "that cannot create a file only if it is absent"),
    ],
)
def test_a_storage_that_does_not_create_if_absent_is_refused_before_a_submit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, words: str
) -> None:
    spec = spec_at(tmp_path, run_config=RunConfig(name="run", storage_path=custom(kind, monkeypatch)))
    with FakeCluster() as cluster:
        with pytest.raises(SpecError, match=words):
            run(spec, cluster)
        assert cluster.submits == 0


def test_an_unknown_filesystem_holds_runs_once_it_has_proven_that_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    proof.ensure(Location.of(custom("Locking", monkeypatch)))


def test_a_storage_is_proven_once_and_keeps_a_record_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Location.of(str(tmp_path))
    proof.ensure(storage)
    assert [path.name for path in tmp_path.iterdir()] == [proof.MARKER]
    assert json.loads((tmp_path / proof.MARKER).read_text()) == {"proven": [str(tmp_path)]}
    monkeypatch.setattr(proof, "_proven", set())
    monkeypatch.setattr(proof, "prove", _never)
    proof.ensure(storage)
    (tmp_path / proof.MARKER).unlink()
    proof.ensure(storage)  # this process knows


def _never(storage: Location) -> None:
    raise AssertionError("proven again")


def test_a_proof_for_one_uri_does_not_count_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / proof.MARKER).write_text(json.dumps({"proven": ["s3://copied/from"]}))
    proof.ensure(Location.of(str(tmp_path)))
    assert json.loads((tmp_path / proof.MARKER).read_text()) == {"proven": [str(tmp_path), "s3://copied/from"]}


@pytest.mark.parametrize("damaged", ["", "{", "[]", '{"proven": 5}', '{"proven": [{}]}', "\udcff"])
def test_a_damaged_record_of_a_proof_is_rewritten(tmp_path: Path, damaged: str) -> None:
    marker = tmp_path / proof.MARKER
    marker.write_bytes(damaged.encode(errors="surrogateescape"))
    proof.ensure(Location.of(str(tmp_path)))
    assert json.loads(marker.read_text()) == {"proven": [str(tmp_path)]}


def test_many_may_prove_a_storage_at_the_same_time(tmp_path: Path) -> None:
    start = threading.Barrier(6)
    failed: list[BaseException] = []

    def prove() -> None:
        start.wait()
        try:
            proof.prove(Location.of(str(tmp_path)))
        except BaseException as exc:
            failed.append(exc)

    threads = [threading.Thread(target=prove) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert list(tmp_path.iterdir()) == []
