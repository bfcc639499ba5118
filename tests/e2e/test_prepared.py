"""prepare → train → evaluate → predict on both engines; `prepare` is a Ray Data function that is killed midway."""

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from devtools.chaos import wait_until
from example_flows.prepare_steps import PARTS
from plugin_core.clusters.local_head import Head
from tests.e2e.test_examples import run, run_dags

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
FIRST, SECOND = "000001-000001.json", "000001-000002.json"


@contextlib.contextmanager
def killed_midway(storage: Path, head: Head) -> Iterator[dict[str, float]]:
    """Kill the function's process once it has saved two files; gives when each file then there was written."""
    written: dict[str, float] = {}
    over = threading.Event()

    def saved() -> list[Path]:
        return [file for file in storage.glob(f"*/.step/state/{FIRST}") if len(json.loads(file.read_text())["state"]) >= 2]

    def kill() -> None:
        found = wait_until(lambda: over.is_set() or saved())
        if over.is_set():
            return
        (state,) = found
        for process in head.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                if "ray::JobProcess" in " ".join(process.cmdline()):
                    process.kill()
        done = json.loads(state.read_text())["state"]
        output = state.parents[2] / "output"
        for number in range(len(done)):
            written.update({str(file): file.stat().st_mtime for file in output.glob(f"train/{number}/*.parquet")})

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    try:
        yield written
    finally:
        over.set()
        thread.join(60)
    assert written, "it was killed"
    assert {name: Path(name).stat().st_mtime for name in written} == written, "what was done was not done again"
    (state,) = storage.glob(f"*/.step/state/{SECOND}")
    assert len(json.loads(state.read_text())["state"]) == PARTS


def test_the_flow(tmp_path: Path, head: Head) -> None:
    with killed_midway(tmp_path / "runs", head):
        table = run(["-m", "example_flows.prepare", str(tmp_path / "runs")], tmp_path / "prefect")
    assert float(table["test accuracy"]) >= 0.93
    assert table["test rows"] == table["predicted rows"] == "299"


def test_the_dag(tmp_path: Path, head: Head) -> None:
    with killed_midway(tmp_path / "airflow-runs", head):
        run_dags(tmp_path, "prepare")
