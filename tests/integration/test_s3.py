"""Storage over a real S3 API."""

import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import boto3
import pytest

from devtools.servers import s3_endpoint, s3_server
from plugin_core import RunConfig, run
from plugin_core.clusters.fake import FakeCluster
from plugin_core.errors import SpecError, StorageError
from plugin_core.loops import rows
from plugin_core.storage.location import Location
from tests.support.fake_steps import spec_at
from tests.support.object_storage import by_s3fs, refused
from tests.support.played_training import ROWS, Training, make_files
from tests.support.storage_contract import StorageContract


class TestS3(StorageContract):
    @pytest.fixture
    def root(self, s3: str, request: pytest.FixtureRequest) -> Location:
        return Location.of(s3).child(f"contract {request.node.name}")


class TestS3fs(StorageContract):
    @pytest.fixture
    def root(self, s3: str, request: pytest.FixtureRequest) -> Location:
        return Location.of(by_s3fs(s3)).child(f"contract-s3fs {request.node.name}")


@pytest.mark.parametrize("way", [str, by_s3fs])
def test_an_absent_file_reads_as_absent_in_a_bucket_of_any_name(s3: str, way: Callable[[str], str]) -> None:
    boto3.client("s3", endpoint_url=s3_endpoint(s3)).create_bucket(Bucket="no-such-bucket-but-one")
    place = Location.of(way(s3.replace("s3://runs/", "s3://no-such-bucket-but-one/"))).child("x")
    assert place.read() is None
    assert place.names() == []


@pytest.mark.parametrize("way", [str, by_s3fs])
def test_a_missing_bucket_is_an_error_and_not_absence(s3: str, way: Callable[[str], str]) -> None:
    place = Location.of(way(s3.replace("s3://runs/", "s3://no-such-bucket/"))).child("x")
    for look in (place.read, place.names, lambda: place.write(b"1"), lambda: place.create(b"1")):
        with pytest.raises(StorageError):
            look()


@pytest.mark.parametrize(
    "uri",
    [
        "s3://runs/x?endpoint_override=127.0.0.1:9&scheme=http",
        pytest.param("s3fs://runs/x?endpoint_url=http://127.0.0.1:9", marks=pytest.mark.slow),
    ],
)
def test_an_endpoint_that_is_down_is_an_error_and_not_absence(uri: str) -> None:
    place = Location.of(uri)
    for look in (place.read, place.names, place.exists):
        with pytest.raises(StorageError):
            look()


@pytest.fixture
def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An S3 API that checks keys. OTHER_KEY belongs to a user without permissions, WRONG_KEY to nobody."""
    with s3_server(tmp_path / "s3.log") as uri:
        endpoint = s3_endpoint(uri)
        users = boto3.client("iam", endpoint_url=endpoint, region_name="us-east-1")
        users.create_user(UserName="nobody")
        key = users.create_access_key(UserName="nobody")["AccessKey"]
        monkeypatch.setenv("RAYTRAIN_URI_VARIABLES", "OTHER_KEY,OTHER_SECRET,WRONG_KEY,WRONG_SECRET")
        monkeypatch.setenv("OTHER_KEY", key["AccessKeyId"])
        monkeypatch.setenv("OTHER_SECRET", key["SecretAccessKey"])
        monkeypatch.setenv("WRONG_KEY", "AKIANOBODYKNOWSTHAT0")
        monkeypatch.setenv("WRONG_SECRET", "word")
        look = urllib.request.Request(f"{endpoint}/moto-api/reset-auth", b"0", {"Content-Type": "text/plain"})
        with urllib.request.urlopen(look) as answer:
            assert answer.status == 200
        yield uri


@pytest.mark.parametrize("way", ["s3", "s3fs"])
@pytest.mark.parametrize("keys", ["WRONG", "OTHER"])
def test_wrong_keys_and_missing_permissions_are_reported_before_a_submit(
    guarded: str, tmp_path: Path, way: str, keys: str
) -> None:
    if way == "s3":
        uri = f"{guarded}&access_key=${keys}_KEY&secret_key=${keys}_SECRET"
    else:
        uri = f"{by_s3fs(guarded)}&key=${keys}_KEY&secret=${keys}_SECRET"
    refused(tmp_path, uri, "which rejects these credentials (wrong key or no permission)")


@pytest.mark.parametrize("way", [str, by_s3fs])
def test_a_wrong_bucket_is_reported_before_a_submit(s3: str, tmp_path: Path, way: Callable[[str], str]) -> None:
    refused(tmp_path, way(s3.replace("s3://runs/", "s3://no-such-bucket/")), "whose bucket does not exist")


def test_a_dead_endpoint_is_unreachable_and_may_be_tried_again(tmp_path: Path) -> None:
    spec = spec_at(
        tmp_path, run_config=RunConfig(name="run", storage_path="s3://runs/x?endpoint_override=127.0.0.1:9&scheme=http")
    )
    with FakeCluster() as cluster:
        with pytest.raises(StorageError, match=r"s3://runs/x/.* cannot be") as told:
            run(spec, cluster)
        assert cluster.submits == 0
    assert told.value.retryable


def test_parquet_is_streamed_from_s3_and_read_on_from_the_row(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training, place = Training(tmp_path).play(monkeypatch), Location.of(s3).child("rows")
    for file in make_files(tmp_path).rglob("[a-z].parquet"):
        place.child(file.name).upload(file)
    used: list[int] = []
    for steps in (4, 9, 100):
        batches = rows.read_parquet(place.uri, batch_size=5, columns=["id"])
        for _, batch in zip(range(steps), batches, strict=False):
            used += batch["id"].tolist()
        training.save([batches])
    assert sorted(used) == list(range(ROWS))
    with pytest.raises(SpecError, match="which has no parquet files"):
        rows.read_parquet(s3.replace("s3://runs/", "s3://no-such-bucket/"), batch_size=5)
    with pytest.raises(StorageError, match="cannot be read"):
        rows.read_parquet("s3://runs/x?endpoint_override=127.0.0.1:9&scheme=http", batch_size=5)
