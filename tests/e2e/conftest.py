"""The real servers that the end-to-end tests share."""

import importlib.util
from collections.abc import Iterator

import pytest

from tests.e2e.prefect_server import prefect_server

if importlib.util.find_spec("airflow"):  # not in the environment of `make test-prefect-latest`
    from tests.e2e.airflow_server import airflow as airflow
    from tests.e2e.airflow_server import folder as folder
    from tests.e2e.airflow_server import gate as gate


@pytest.fixture(scope="session")
def prefect_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with prefect_server(tmp_path_factory.mktemp("prefect")) as url:
        yield url
