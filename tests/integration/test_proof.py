"""Storages that are asked to create a file only if it is absent, and ignore that."""

from collections.abc import Callable
from pathlib import Path

import pytest

from plugin_core import RunConfig, run
from plugin_core.clusters import doctor
from plugin_core.clusters.fake import FakeCluster
from plugin_core.errors import SpecError
from plugin_core.storage import proof
from plugin_core.storage.location import Location
from tests.support.clouds import gcs_server
from tests.support.fake_steps import spec_at
from tests.support.forgetful_s3 import in_front_of
from tests.support.object_storage import by_s3fs


@pytest.fixture(autouse=True)
def another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has proven nothing yet."""
    monkeypatch.setattr(proof, "_proven", set())


@pytest.mark.parametrize("way", [str, by_s3fs])
def test_an_s3_server_that_ignores_if_none_match_is_refused_before_a_submit(
    s3: str, tmp_path: Path, way: Callable[[str], str]
) -> None:
    with in_front_of(s3.replace("/prefix", "/forgetful")) as (uri, _):
        refused(way(uri), tmp_path)
        finding = doctor._storage(way(uri))
        assert not finding.good
        assert "so two attempts of a run could both start" in finding.finding
    assert Location.of(s3.replace("/prefix", "/forgetful")).names() == [], "the proof left something"


@pytest.mark.slow
def test_a_google_storage_that_ignores_preconditions_is_refused_before_a_submit(tmp_path: Path) -> None:
    with gcs_server(tmp_path / "log", conditions=False) as uri:
        refused(uri, tmp_path)


def refused(uri: str, tmp_path: Path) -> None:
    with FakeCluster() as cluster:
        with pytest.raises(SpecError) as told:
            run(spec_at(tmp_path, run_config=RunConfig(name="run", storage_path=uri)), cluster)
        assert cluster.submits == 0
    assert told.value.message.startswith(
        f"run_config.storage_path: got {uri!r}, where 4 of 4 concurrent creators of one file"
    )
    assert "expected storage that creates a file only if it is absent" in told.value.message


@pytest.mark.parametrize("way", [str, by_s3fs])
def test_a_storage_that_was_proven_is_only_asked_for_its_marker(
    s3: str, way: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with in_front_of(s3.replace("/prefix", f"/proven-{way.__name__}"), strip=False) as (uri, requests):
        storage = Location.of(way(uri))
        proof.ensure(storage)
        assert len(requests) <= 30
        requests.clear()
        proof.ensure(storage)
        assert requests == [], "this process knows"
        monkeypatch.setattr(proof, "_proven", set())
        proof.ensure(storage)
        assert requests == [f"GET /runs/{storage.name}/{proof.MARKER}"]
