"""Azure and Google Cloud Storage, by emulators."""

import base64
import os
import re
from pathlib import Path

import pytest

from plugin_core import RunConfig, run
from plugin_core.clusters.fake import FakeCluster
from plugin_core.storage import proof
from plugin_core.storage.location import Location
from tests.support.clouds import AZURE_VARIABLE
from tests.support.fake_steps import spec_at
from tests.support.object_storage import refused
from tests.support.storage_contract import StorageContract

pytestmark = pytest.mark.slow


class TestAzure(StorageContract):
    @pytest.fixture
    def root(self, azure: str, request: pytest.FixtureRequest) -> Location:
        return Location.of(azure).child(f"contract {request.node.name}")


class TestGcs(StorageContract):
    @pytest.fixture
    def root(self, gcs: str, request: pytest.FixtureRequest) -> Location:
        return Location.of(gcs).child(f"contract {request.node.name}")


@pytest.mark.parametrize("cloud", ["azure", "gcs"])
def test_a_wrong_bucket_is_reported_before_a_submit(request: pytest.FixtureRequest, cloud: str, tmp_path: Path) -> None:
    uri: str = request.getfixturevalue(cloud)
    refused(tmp_path, uri.replace("//runs", "//none"), "whose bucket does not exist")


def test_a_wrong_azure_key_is_reported_before_a_submit(azure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = re.sub("AccountKey=[^;]*", "AccountKey=" + base64.b64encode(b"word" * 16).decode(), os.environ[AZURE_VARIABLE])
    monkeypatch.setenv("WRONG_CONNECTION", wrong)
    monkeypatch.setenv("RAYTRAIN_URI_VARIABLES", "WRONG_CONNECTION")
    uri = azure.replace(AZURE_VARIABLE, "WRONG_CONNECTION")
    refused(tmp_path, uri, "which rejects these credentials (wrong key or no permission)")


@pytest.mark.parametrize("cloud", ["azure", "gcs"])
def test_a_cloud_shows_that_it_can_hold_runs(
    request: pytest.FixtureRequest, cloud: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "_proven", set())
    storage = Location.of(request.getfixturevalue(cloud)).child("proven")
    proof.ensure(storage)
    assert storage.names() == [proof.MARKER]


@pytest.mark.parametrize("cloud", ["azure", "gcs"])
def test_a_run_is_kept_on_a_cloud(request: pytest.FixtureRequest, cloud: str, tmp_path: Path) -> None:
    uri: str = request.getfixturevalue(cloud)
    spec = spec_at(tmp_path, run_config=RunConfig(name="kept", storage_path=uri))
    with FakeCluster() as cluster:
        result = run(spec, cluster)
        assert run(spec, cluster) == result, "its result is read again"
        assert cluster.submits == 1
    assert Location.of(uri).child("kept", ".step", "result.json").is_file()
