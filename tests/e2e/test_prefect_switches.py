"""Ray Train's less common switches work from an engine as from the core: a flow in a process of its own, a real server."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from prefect.client.orchestration import SyncPrefectClient

from plugin_core.runs.directory import RunDir
from plugin_core.runs.journal import JournalReader, read_reports
from tests.e2e.prefect_runs import ROOT
from tests.e2e.prefect_switches import ROWS

pytestmark = pytest.mark.slow


def test_validation_callbacks_rows_seeds_and_a_search_over_preprocessors(tmp_path: Path, client: SyncPrefectClient) -> None:
    command = [sys.executable, "-m", "tests.e2e.prefect_switches", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    (place,) = (tmp_path / "runs").glob("*--fit*")
    rundir = RunDir.at(str(place))
    first, second = (report["metrics"] for report in read_reports(rundir))
    assert first["deterministic"] is second["deterministic"] is True
    assert sorted(first["ids"]) == sorted(second["ids"]) == list(range(ROWS))
    assert first["ids"] != second["ids"], "another order each epoch"
    validated = [entry["metrics"] for entry in JournalReader(rundir) if entry.get("phase") == "validated"]
    assert validated == [{"accuracy": 0.5}, {"accuracy": 0.9}]
    assert "announced epoch 1" in done.stdout + done.stderr, "the callback's line is in the task's log"
    artifacts = {artifact.key: artifact for artifact in client.read_artifacts() if artifact.key}
    (trials,) = (each.data for key, each in artifacts.items() if key.endswith("-search-trials"))
    assert len(json.loads(str(trials))) == 2, "the table of trials is an artifact"
    (report,) = (str(each.data) for key, each in artifacts.items() if key.endswith("-search-report"))
    assert "data:image/png" in report, "and its plot stands in the report"
