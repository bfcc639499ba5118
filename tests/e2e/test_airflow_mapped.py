"""Eight mapped tasks at once in a real Airflow."""

import pytest

from devtools.chaos import Trail, nothing_left, wait_until
from plugin_core.runs.directory import RunDir, run_name
from tests.e2e.airflow_scenario import STEPS, Make
from tests.support.data_trainings import WAITING, DataTrainings


@pytest.mark.slow
def test_eight_mapped_tasks_are_deferred_at_once_on_one_triggerer(scenario: Make) -> None:
    it = scenario("many").begin()
    wait_until(lambda: list(it.airflow.mapped_states("many", it.run_id, "train").values()) == ["deferred"] * 8)
    it.go()
    assert it.airflow.wait("many", it.run_id, timeout_s=600) == "success"
    for number in range(8):
        trail = Trail(it.folder / f"trail-{number}.jsonl")
        assert trail.steps() == list(range(STEPS)), "each ran once, and none of them twice"
        assert RunDir.at(str(it.runs / run_name("many", it.run_id, "train", str(number)))).receipts() == [1]


@pytest.mark.slow
def test_eight_mapped_trainings_with_data_take_turns_on_the_head(scenario: Make) -> None:
    """The one that is marked as failed while it waits leaves nothing behind."""
    it = scenario("many_with_data")
    trainings = DataTrainings(it.folder)
    it.begin()
    rundirs = [RunDir.at(str(it.runs / run_name(it.dag_id, it.run_id, "train", str(number)))) for number in range(8)]

    def waiting() -> list[int]:
        beats = [rundir.heartbeat(1) for rundir in rundirs]
        found = [number for number, beat in enumerate(beats) if beat and WAITING in beat.phase]
        begun = [number for number in range(8) if trainings.trail(f"run-{number}").steps()]
        return [number for number in found if begun and number not in begun]

    failed = wait_until(lambda: waiting()[2:])[-1]
    it.airflow.set_task_state(it.dag_id, it.run_id, "train", "failed", failed)
    wait_until(lambda: rundirs[failed].end(1))
    it.go()
    assert it.airflow.wait(it.dag_id, it.run_id, timeout_s=900) == "failed"
    states = it.airflow.mapped_states(it.dag_id, it.run_id, "train")
    assert states == {number: "failed" if number == failed else "success" for number in range(8)}
    trainings.check_one_at_a_time([f"run-{number}" for number in range(8) if number != failed])
    assert trainings.trail(f"run-{failed}").steps() == [], "it never began"
    for number, rundir in enumerate(rundirs):
        wait_until(lambda rundir=rundir, number=number: nothing_left(rundir.uri, trainings.trail(f"run-{number}")))
