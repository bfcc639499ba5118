"""One real Ray head and one real S3 API for all integration tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from plugin_core import LocalCluster
from plugin_core.local_head import Head
from tests.servers import S3_ENVIRONMENT, embedded_head, environment, s3_server


@pytest.fixture(scope="session")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    with embedded_head(tmp_path_factory.mktemp("home")) as head:
        yield head


@pytest.fixture
def cluster(head: Head) -> LocalCluster:
    return LocalCluster()


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log: Path = tmp_path_factory.mktemp("s3") / "server.log"
    with s3_server(log) as uri, environment(S3_ENVIRONMENT):
        yield uri
