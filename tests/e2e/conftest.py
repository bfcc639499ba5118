"""The real servers that the end-to-end tests share."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client

from devtools.prefect_server import prefect_server
from plugin_core.clusters.local_head import Head

if importlib.util.find_spec("airflow"):  # not in the environment of `make test-prefect-latest`
    from tests.e2e.airflow_scenario import scenario as scenario
    from tests.e2e.airflow_server import airflow as airflow
    from tests.e2e.airflow_server import folder as folder
    from tests.e2e.airflow_server import gate as gate
    from tests.e2e.airflow_server import kubernetes as kubernetes


@pytest.fixture(scope="module")
def prefect_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server for each module: the tests kill its clients in the middle of requests, and its SQLite was once locked for
    good after that ("database is locked", Prefect 3.7)."""
    with prefect_server(tmp_path_factory.mktemp("prefect")) as url:
        yield url


@pytest.fixture(scope="module")
def client(prefect_api: str, head: Head) -> Iterator[SyncPrefectClient]:
    """Prefect's server, queried by the test; there is a Ray head for its flows."""
    with get_client(sync_client=True) as client:
        yield client


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Where the steps of one test's flow run keep their runs."""
    return tmp_path / "runs"
