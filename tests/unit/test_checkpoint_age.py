"""The age of checkpoints that were first kept on the nodes (`local_tier`) and reached storage later."""

from pathlib import Path
from typing import Any

import pytest

from plugin_core import promote
from plugin_core.runs.directory import RunDir
from plugin_core.runs.journal import JournalWriter
from plugin_core.specs import RunConfig, TrainSpec
from plugin_core.supervisor.generations import lay_down

MONDAY, TUESDAY = 1_800_000_000.0, 1_800_086_400.0


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    return {"registry": str(tmp_path / "models")}


def trained(storage: Path, name: str, at: float, request: str = "") -> str:
    """A finished training's checkpoint, which was reported then and reached storage a minute later."""
    given = TrainSpec(
        framework="python",
        train_loop_per_worker="devtools.steps:counting_loop",
        run_config=RunConfig(name=name, storage_path=str(storage)),
    )
    rundir: RunDir = lay_down(given, request)[0]
    writer = JournalWriter(rundir, 1)
    writer.append({"time": at, "report": 1, "index": 1, "metrics": {}, "checkpoint": None})
    writer.append({"time": at + 60, "phase": "stored", "checkpoint": "checkpoint_1", "index": 1, "metrics": {}})
    writer.close()
    checkpoint = rundir.location.child("checkpoint_1")
    checkpoint.child("weights").write(b"w")
    return checkpoint.uri


def test_an_older_checkpoint_of_a_tier_moves_no_champion_back(tmp_path: Path, options: dict[str, Any]) -> None:
    old, new = trained(tmp_path, "old", MONDAY), trained(tmp_path, "new", TUESDAY)
    assert promote(new, "digits", **options).made == TUESDAY + 60
    kept = promote(old, "digits", **options)
    assert (kept.checkpoint, kept.version) == (new, 1)
    assert "the new checkpoint was made at 2027-01-15 08:01:00 UTC" in kept.kept


def test_a_training_that_an_engine_repeats_is_as_old_as_its_first_checkpoint(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    first = trained(tmp_path, "monday", MONDAY, "monday#0")
    RunDir.at(str(tmp_path / "monday")).deliver("monday#0")
    again = trained(tmp_path, "monday", TUESDAY, "monday#1")
    assert "monday.g2" in again
    assert promote(first, "digits", **options).made == MONDAY + 60
    assert promote(again, "digits", **options).made == MONDAY + 60
