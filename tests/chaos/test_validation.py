"""The driver is killed between a training and its validation, or in the middle of one."""

from pathlib import Path

import pytest

from devtools import switches
from devtools.chaos import Running, drivers, kill, wait_until
from plugin_core import LocalCluster, RunConfig, TrainSpec
from plugin_core.runs.journal import JournalReader
from plugin_core.specs import CheckpointConfig


@pytest.mark.slow
def test_a_kill_between_training_and_validation_loses_no_validation(tmp_path: Path, cluster: LocalCluster) -> None:
    """The loop has ended and all its checkpoints wait for the first one's validation when the driver dies."""
    begun, go = tmp_path / "begun", tmp_path / "go"
    spec = TrainSpec(
        framework="python",
        train_loop_per_worker=switches.validating_loop,
        train_loop_config={"epochs": 3},
        validation={"fn": switches.validate, "fn_kwargs": {"file": str(begun), "until": str(go)}},
        run_config=RunConfig(
            name="run",
            storage_path=str(tmp_path),
            checkpoint_config=CheckpointConfig(checkpoint_score_attribute="accuracy", num_to_keep=1),
        ),
    )
    running = Running(spec, cluster)
    wait_until(lambda: begun.exists() and len(running.reports()) == 3)
    (driver,) = drivers(running.rundir.uri)
    kill(driver)
    go.touch()
    result = running.result()
    assert result.run.attempt == 2
    assert result.best_score == 11
    assert result.warnings == []
    ended = [entry for entry in JournalReader(running.rundir) if entry.get("phase") == "validated"]
    assert [(entry["index"], entry["status"]) for entry in ended] == [(number, "validated") for number in (1, 2, 3)]
    assert begun.read_text().split() == ["0", "0", "1", "2"], "the one that was interrupted began again"


def reports(running: Running) -> list[dict[str, object]]:
    return [entry for entry in JournalReader(running.rundir) if "report" in entry]
