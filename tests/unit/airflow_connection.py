"""A fake cluster behind a connection of Airflow's."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from plugin_core.testing import FakeCluster

TOKEN = "a-very-secret-token"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeCluster]:
    """A fake cluster behind the connection `fake`, which also says where runs are kept."""
    with FakeCluster(token=TOKEN, metrics={"loss": 0.5}) as cluster:
        connection = {"conn_type": "rayjobs", "host": cluster.address, "password": TOKEN}
        monkeypatch.setenv("AIRFLOW_CONN_FAKE", json.dumps({**connection, "extra": {"storage_path": str(tmp_path)}}))
        yield cluster
