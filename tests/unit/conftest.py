"""Fixtures of several unit tests: `raytrain` in this process, on a default storage of the test's own."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools.written_runs import Raytrain
from plugin_core import cli
from plugin_core.clusters.fake import FakeCluster
from plugin_core.storage.uris import FILESYSTEMS, URI_VARIABLES
from tests.support.fake_kubernetes import FakeKubernetes


@pytest.fixture(autouse=True)
def nothing_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What storages of the whole session have allowed is not allowed here."""
    for name in (FILESYSTEMS, URI_VARIABLES):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The default storage."""
    (tmp_path / "runs").mkdir()
    monkeypatch.setenv("RAY_STORAGE", str(tmp_path / "runs"))
    monkeypatch.delenv("COLUMNS", raising=False)  # Airflow sets it where it is imported
    monkeypatch.chdir(tmp_path)
    return str(tmp_path / "runs")


@pytest.fixture
def raytrain(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Raytrain:
    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["raytrain", *arguments])
        monkeypatch.setattr(sys, "path", [*sys.path])
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            cli.main()
        return int(left.value.code or 0), *capsys.readouterr()

    return call


@pytest.fixture
def kubernetes(tmp_path: Path) -> Iterator[FakeKubernetes]:
    with FakeKubernetes(tmp_path) as fake:
        yield fake


@pytest.fixture
def ray() -> Iterator[FakeCluster]:
    """The Ray behind each of its clusters; the token is that of the operator's Secret."""
    with FakeCluster(token="secret") as fake:
        yield fake
