"""Tasks of the provider, without a database, and a fake cluster behind an Airflow connection."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider.operators import RayTrainOperator
from plugin_core.clusters.fake import FakeCluster

TOKEN = "a-very-secret-token"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeCluster]:
    """A fake cluster behind the connection `fake`, which also says where runs are kept."""
    with FakeCluster(token=TOKEN, metrics={"loss": 0.5}) as cluster:
        connection = {"conn_type": "rayjobs", "host": cluster.address, "password": TOKEN}
        monkeypatch.setenv("AIRFLOW_CONN_FAKE", json.dumps({**connection, "extra": {"storage_path": str(tmp_path)}}))
        yield cluster


def loop(config: dict[str, Any]) -> None:
    raise NotImplementedError


def task_instance(**changed: Any) -> Any:
    ids = {"dag_id": "d", "run_id": "r", "task_id": "train", "map_index": -1, "try_number": 1, "max_tries": 0}
    return SimpleNamespace(**{**ids, **changed}, xcom_push=lambda key, value: None)


def train_operator(**kwargs: Any) -> RayTrainOperator:
    return RayTrainOperator(**{"task_id": "train", "framework": "python", "train_loop_per_worker": loop, **kwargs})
