"""Storage over a real S3 API."""

import pytest

from plugin_core.errors import StorageError
from plugin_core.storage import Location
from tests.storage_contract import StorageContract


class TestS3(StorageContract):
    @pytest.fixture
    def root(self, s3: str, request: pytest.FixtureRequest) -> Location:
        return Location.of(s3).child(f"contract {request.node.name}")


def test_a_missing_bucket_is_an_error_and_not_absence(s3: str) -> None:
    place = Location.of(s3.replace("s3://runs/", "s3://no-such-bucket/")).child("x")
    with pytest.raises(StorageError):
        place.read()
    with pytest.raises(StorageError):
        place.create(b"1")


def test_an_endpoint_that_is_down_is_an_error_and_not_absence() -> None:
    place = Location.of("s3://runs/x?endpoint_override=127.0.0.1:9&scheme=http")
    with pytest.raises(StorageError):
        place.read()
