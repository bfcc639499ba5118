"""Errors of cloud SDKs, which are no OSError, where files are looked up."""

from datetime import timedelta
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from plugin_core import DatasetConfig
from plugin_core.errors import StorageError
from plugin_core.runs.dataset_fingerprint import dataset_fingerprint
from plugin_core.runs.directory import AttemptEnd, RunDir
from plugin_core.runs.retention import prunable
from plugin_core.storage.location import Location


class ServerBusy(Exception):
    """As Azure's SDK and gcsfs raise."""


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    info = MemoryFileSystem.info

    def fail(self: Any, path: str, **options: Any) -> Any:
        if path.endswith((".txt", ".parquet", ".end.json")):
            raise ServerBusy("503")
        return info(self, path, **options)

    monkeypatch.setattr(MemoryFileSystem, "info", fail)


@pytest.mark.parametrize(("name", "form"), [("rows.txt", "text"), ("rows.parquet", "parquet")])
@pytest.mark.usefixtures("busy")
def test_a_dataset_that_cannot_be_looked_up_is_an_error_of_its_storage(name: str, form: str) -> None:
    with pytest.raises(StorageError, match="503"):
        dataset_fingerprint(DatasetConfig(path=f"memory://busy/{name}", format=form))


@pytest.mark.usefixtures("busy")
def test_a_run_whose_end_cannot_be_looked_up_is_an_error_of_its_storage() -> None:
    storage = Location.of("memory://busy_runs")
    rundir = RunDir.at(storage.child("run").uri)
    rundir.step.child("spec.json").write(b'{"schema": 1, "kind": "train", "spec": {}, "payload": false}')
    rundir.claim(1, "address", "incarnation")
    rundir.record_end(1, AttemptEnd("failed"))
    with pytest.raises(StorageError, match="cannot be looked up: 503"):
        list(prunable(storage, timedelta()))
