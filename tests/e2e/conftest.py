"""The real servers that the end-to-end tests share."""

from collections.abc import Iterator

import pytest

from tests.e2e.airflow_server import airflow as airflow
from tests.e2e.airflow_server import folder as folder
from tests.e2e.airflow_server import gate as gate
from tests.e2e.prefect_server import prefect_server


@pytest.fixture(scope="session")
def prefect_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with prefect_server(tmp_path_factory.mktemp("prefect")) as url:
        yield url
