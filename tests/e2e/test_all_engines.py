"""One spec file, unchanged: by `raytrain run`, from Prefect and from Airflow, on local storage and on S3."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.testing import AirflowServer
from plugin_core.runs.directory import RunDir

ROOT = Path(__file__).parents[2]
SPEC = Path(__file__).parent / "same_spec.yaml"

FLOW = f"""
from prefect import flow
from plugin_core import load_spec
from prefect_integration import train

@flow
def main():
    return train(load_spec({str(SPEC)!r}))

if __name__ == "__main__":
    print("RESULT", main().model_dump_json())
"""


@pytest.mark.slow
@pytest.mark.parametrize("storage_kind", ["local", "s3"])
def test_the_same_spec_runs_from_every_engine(
    storage_kind: str, tmp_path: Path, s3: str, airflow: AirflowServer, prefect_api: str
) -> None:
    storage = str(tmp_path) if storage_kind == "local" else s3
    where = {**os.environ, "RAY_STORAGE": storage, "PYTHONPATH": str(ROOT), "PREFECT_API_URL": prefect_api}

    def call(*command: str) -> str:
        done = subprocess.run(command, env=where, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    results: dict[str, Any] = {}
    results["cli"] = json.loads(call(str(Path(sys.executable).with_name("raytrain")), "run", str(SPEC), "--quiet"))

    (tmp_path / "flow.py").write_text(FLOW)
    [line] = [line for line in call(sys.executable, "flow.py").splitlines() if line.startswith("RESULT ")]
    results["prefect"] = json.loads(line.removeprefix("RESULT "))

    run_id = airflow.trigger("same_spec", {"storage": storage})
    assert airflow.wait("same_spec", run_id) == "success", airflow.task_log("same_spec", run_id, "train")
    results["airflow"] = airflow.xcom("same_spec", run_id, "train")

    assert len({result["run"]["name"] for result in results.values()}) == 3
    for result in results.values():
        assert result["metrics"] == {"epoch": 1, "started_at": 0, "loss": 0.5, "nan": None}
        rundir = RunDir.at(result["run"]["uri"])
        assert rundir.receipts() == [1]
        assert rundir.location.child(result["checkpoint"]["uri"].split("?")[0].rpartition("/")[2]).exists()
        assert rundir.uri.split("?")[0].startswith(storage.split("?")[0])
    specs = [RunDir.at(result["run"]["uri"]).read_record()["spec"] for result in results.values()]
    for spec in specs:
        spec["run_config"].update(name=None, storage_path=None)
    assert specs[0] == specs[1] == specs[2]
