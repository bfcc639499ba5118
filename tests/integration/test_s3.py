"""Storage over a real S3 API."""

import re
from collections.abc import Callable

import pytest

from plugin_core.errors import StorageError
from plugin_core.storage import Location
from tests.storage_contract import StorageContract


class TestS3(StorageContract):
    @pytest.fixture
    def root(self, s3: str, request: pytest.FixtureRequest) -> Location:
        return Location.of(s3).child(f"contract {request.node.name}")


def by_s3fs(uri: str) -> str:
    """The same place through fsspec."""
    endpoint = re.search(r"endpoint_override=([^&]+)", uri)
    assert endpoint is not None
    return f"s3fs{uri.partition('?')[0][2:]}?endpoint_url=http://{endpoint[1]}"


class TestS3fs(StorageContract):
    @pytest.fixture
    def root(self, s3: str, request: pytest.FixtureRequest) -> Location:
        return Location.of(by_s3fs(s3)).child(f"contract-s3fs {request.node.name}")


@pytest.mark.parametrize("way", [str, by_s3fs])
def test_a_missing_bucket_is_an_error_and_not_absence(s3: str, way: Callable[[str], str]) -> None:
    place = Location.of(way(s3.replace("s3://runs/", "s3://no-such-bucket/"))).child("x")
    for look in (place.read, place.names, lambda: place.write(b"1"), lambda: place.create(b"1")):
        with pytest.raises(StorageError):
            look()


@pytest.mark.parametrize(
    "uri", ["s3://runs/x?endpoint_override=127.0.0.1:9&scheme=http", "s3fs://runs/x?endpoint_url=http://127.0.0.1:9"]
)
def test_an_endpoint_that_is_down_is_an_error_and_not_absence(uri: str) -> None:
    place = Location.of(uri)
    for look in (place.read, place.names, place.exists):
        with pytest.raises(StorageError):
            look()
