"""Runs of the DAGs in `airflow_dags/scenarios.py`, as the tests of Airflow's faults drive them."""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.testing import AirflowServer
from devtools.chaos import Trail, nothing_left, wait_until
from plugin_core.runs.directory import RunDir, run_name

STEPS = 6


class Scenario:
    """One run of one of the DAGs in `airflow_dags/scenarios.py`, with its folder, trail and run directory."""

    def __init__(self, airflow: AirflowServer, folder: Path, dag_id: str):
        self.airflow, self.dag_id = airflow, dag_id
        self.folder = folder / f"{dag_id}-{uuid.uuid4().hex[:6]}"
        self.folder.mkdir()
        self.trail = Trail(self.folder / "trail.jsonl")
        self.runs = folder / "runs"

    def begin(self, *files: str) -> "Scenario":
        for name in files:
            (self.folder / name).touch()
        self.run_id = self.airflow.trigger(self.dag_id, {"folder": str(self.folder)})
        return self

    def held(self) -> "Scenario":
        """Until the loop stands at its wait, half of the steps done."""
        self.trail.wait_for(3)
        wait_until(lambda: len(list(Path(self.rundir.uri).glob("checkpoint_a*"))) == 3)
        return self

    @property
    def rundir(self) -> RunDir:
        return RunDir.at(str(self.runs / run_name(self.dag_id, self.run_id, "train")))

    def go(self) -> None:
        (self.folder / "go").touch()

    def state(self) -> Any:
        return self.airflow.task(self.dag_id, self.run_id, "train")["state"]

    def log(self, try_number: int = 1) -> str:
        return self.airflow.task_log(self.dag_id, self.run_id, "train", try_number)

    def succeeds(self, attempts: list[int], repeated: int) -> dict[str, Any]:
        """It succeeds, with this many attempts in all and at most this many steps done twice."""
        state = self.airflow.wait(self.dag_id, self.run_id)
        assert state == "success", "\n".join(map(self.log, (1, 2, 3)))
        result: dict[str, Any] = self.airflow.xcom(self.dag_id, self.run_id, "train")
        assert result["metrics"]["step"] == STEPS - 1
        assert RunDir.at(result["run"]["uri"]).receipts() == attempts
        assert set(self.trail.steps()) == set(range(STEPS))
        assert self.trail.repeated() <= repeated, self.trail.steps()
        self.nothing_left()
        return result

    def is_stopped(self) -> None:
        """No process of the run is alive, and no second job was ever started."""
        self.nothing_left()
        assert self.rundir.receipts() == [1]
        assert max(self.trail.steps(), default=0) < STEPS - 1

    def nothing_left(self) -> None:
        wait_until(lambda: nothing_left(self.rundir.uri, self.trail))


@pytest.fixture
def scenario(airflow: AirflowServer, folder: Path) -> Callable[[str], Scenario]:
    return lambda dag_id: Scenario(airflow, folder, dag_id)


Make = Callable[[str], Scenario]
