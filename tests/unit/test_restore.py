"""Ray's snapshot, whatever happened to it: used if it is correct, rebuilt if not."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from ray.train import CheckpointConfig as RayCheckpointConfig
from ray.train.v2._internal.execution.checkpoint.checkpoint_manager import CheckpointManager
from ray.train.v2._internal.execution.storage import StorageContext

from plugin_core.driver.fenced_filesystem import SNAPSHOT, fenced_filesystem
from plugin_core.driver.train.snapshot import RunState, repair_snapshot, state_before
from plugin_core.errors import StorageError
from plugin_core.runs.directory import RunDir
from plugin_core.runs.history import History
from plugin_core.specs import CheckpointConfig
from plugin_core.storage import checkpoint_manifest
from plugin_core.storage.location import Location

CONFIG = CheckpointConfig(num_to_keep=3)


def checkpoint(run: Path, name: str) -> None:
    (run / name).mkdir(parents=True)
    (run / name / "state.json").write_text("{}")


def journal(run: Path, *entries: tuple[str | None, dict[str, Any]]) -> None:
    (run / ".step/journal").mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps({"attempt": 1, "report": number, "metrics": metrics, "checkpoint": name})
        for number, (name, metrics) in enumerate(entries, 1)
    ]
    (run / ".step/journal/001-0001.jsonl").write_text("\n".join(lines) + "\n")


def repair(run: Path, config: CheckpointConfig) -> str:
    rundir = RunDir.at(str(run))
    return repair_snapshot(rundir, config, History.read(rundir))


def restored(run: Path, **config: Any) -> list[str]:
    """The checkpoints that Ray itself finds, the latest last, by the code that it starts a run with."""
    manager = CheckpointManager(RayCheckpointConfig(**config), StorageContext(str(run.parent), run.name))
    names = [Path(result.checkpoint.path).name for result in manager._checkpoint_results]
    latest = manager.latest_checkpoint_result
    return [*names, *([f"latest {Path(latest.checkpoint.path).name}"] if latest else [])]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with three registered checkpoints and a newest one that is half uploaded."""
    folder = tmp_path / "run"
    names = [f"checkpoint_a001_{number:06}" for number in (1, 2, 3)]
    for name in (*names, "checkpoint_a001_000004"):
        checkpoint(folder, name)
    journal(folder, *((name, {"loss": 1 / number}) for number, name in enumerate(names, 1)))
    (folder / SNAPSHOT).write_bytes(b"{")
    repair(folder, CONFIG)
    return folder


GOOD = ["checkpoint_a001_000001", "checkpoint_a001_000002", "checkpoint_a001_000003", "latest checkpoint_a001_000003"]


def test_a_correct_snapshot_is_left_alone(run: Path) -> None:
    before = (run / SNAPSHOT).read_bytes()
    assert repair(run, CONFIG) == ""
    assert (run / SNAPSHOT).read_bytes() == before
    assert restored(run) == GOOD


def test_a_snapshot_truncated_at_any_byte_is_rebuilt(run: Path) -> None:
    whole = (run / SNAPSHOT).read_bytes()
    for length in range(len(whole)):
        (run / SNAPSHOT).write_bytes(whole[:length])
        said = repair(run, CONFIG)
        assert "was rebuilt with 3 checkpoint(s), the latest checkpoint_a001_000003" in said
        assert ("is empty" if length == 0 else "is truncated") in said
        assert (run / SNAPSHOT).read_bytes() == whole
    assert restored(run) == GOOD


def test_a_missing_snapshot_is_rebuilt(run: Path) -> None:
    (run / SNAPSHOT).unlink()
    assert "is missing; it was rebuilt" in repair(run, CONFIG)
    assert restored(run) == GOOD


def test_a_snapshot_that_lists_an_absent_directory_is_rebuilt_without_it(run: Path) -> None:
    for file in (run / "checkpoint_a001_000003").iterdir():
        file.unlink()
    said = repair(run, CONFIG)
    assert "lists 1 absent, empty or damaged directory (checkpoint_a001_000003)" in said
    (run / "checkpoint_a001_000003").rmdir()
    assert restored(run) == [*GOOD[:2], "latest checkpoint_a001_000002"]


def test_a_half_uploaded_directory_is_never_restored_from(run: Path) -> None:
    (run / SNAPSHOT).unlink()
    repair(run, CONFIG)
    assert "checkpoint_a001_000004" not in " ".join(restored(run))


def test_a_snapshot_of_another_ray_version_is_rebuilt(run: Path) -> None:
    text = (run / SNAPSHOT).read_text()
    (run / SNAPSHOT).write_text(json.dumps({**json.loads(text), "ray_version": "2.51.0"}))
    assert "was written by Ray 2.51.0, this is Ray" in repair(run, CONFIG)
    assert restored(run) == GOOD


def test_a_checkpoint_known_only_to_the_snapshot_is_the_newest(run: Path) -> None:
    """The journal is written once a second; the snapshot at each checkpoint."""
    journal(run, ("checkpoint_a001_000001", {}), ("checkpoint_a001_000002", {}))
    for file in (run / "checkpoint_a001_000001").iterdir():
        file.unlink()
    assert repair(run, CONFIG)
    assert restored(run) == [*GOOD[1:3], "latest checkpoint_a001_000003"]


@pytest.mark.parametrize(("order", "best"), [("min", "checkpoint_a001_000003"), ("max", "checkpoint_a001_000001")])
def test_the_best_checkpoint_by_score_stays_the_best(run: Path, order: Any, best: str) -> None:
    (run / SNAPSHOT).unlink()
    config = CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="loss", checkpoint_score_order=order)
    repair(run, config)
    found = restored(run, num_to_keep=1, checkpoint_score_attribute="loss", checkpoint_score_order=order)
    assert found[-2:] == [best, "latest checkpoint_a001_000003"], "Ray keeps its list from worst to best"


def test_a_run_that_never_had_a_checkpoint_starts_from_scratch(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert repair(run, CONFIG) == ""
    journal(run, (None, {"loss": 1.0}))
    (run / SNAPSHOT).write_bytes(b"{")
    assert "was removed: no complete checkpoint is left" in repair(run, CONFIG)
    assert not (run / SNAPSHOT).exists()


def test_a_score_within_a_nested_metric_counts(run: Path) -> None:
    names = [f"checkpoint_a001_{number:06}" for number in (1, 2, 3)]
    journal(run, *((name, {"eval": {"loss": loss}}) for name, loss in zip(names, (0.2, 0.1, 0.3), strict=True)))
    (run / SNAPSHOT).unlink()
    repair(run, CheckpointConfig(checkpoint_score_attribute="eval/loss", checkpoint_score_order="min"))
    assert restored(run, checkpoint_score_attribute="eval/loss", checkpoint_score_order="min") == [
        *(names[i] for i in (2, 0, 1)),
        f"latest {names[2]}",
    ]


def test_a_checkpoint_that_cannot_be_read_is_not_called_absent(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = Location.names

    def away(self: Location, after: str = "") -> list[str]:
        if "checkpoint_" in self.name:
            raise StorageError("the storage does not answer")
        return listing(self, after)

    before = (run / SNAPSHOT).read_bytes()
    monkeypatch.setattr(Location, "names", away)
    with pytest.raises(StorageError):
        repair(run, CONFIG)
    assert (run / SNAPSHOT).read_bytes() == before


THREE = tuple(f"checkpoint_a001_{number:06}" for number in (1, 2, 3))


def state_of(run: Path) -> RunState:
    rundir = RunDir.at(str(run))
    return state_before(rundir, History.read(rundir))


def test_a_runs_state_is_that_of_its_latest_checkpoint(run: Path) -> None:
    assert state_of(run) == RunState(reports=3, index=3, checkpoints=THREE)
    assert state_of(run.parent / "new") == RunState()


def test_reports_after_the_checkpoint_are_repeated_with_the_same_index(run: Path) -> None:
    with (run / ".step/journal/001-0001.jsonl").open("a") as file:
        file.writelines(json.dumps({"attempt": 1, "report": n, "metrics": {}, "checkpoint": None}) + "\n" for n in (4, 5))
    assert state_of(run) == RunState(reports=5, index=3, checkpoints=THREE)
    with (run / ".step/journal/002-0001.jsonl").open("w") as file:
        file.write(json.dumps({"attempt": 2, "report": 6, "index": 4, "metrics": {}, "checkpoint": None}) + "\n")
    assert state_of(run) == RunState(reports=6, index=3, checkpoints=THREE)


def test_a_registered_checkpoint_whose_report_was_lost_in_a_kill_is_found_in_the_snapshot(run: Path) -> None:
    lines = (run / ".step/journal/001-0001.jsonl").read_text().splitlines()
    (run / ".step/journal/001-0001.jsonl").write_text("\n".join(lines[:2]) + "\n")
    lost = {"report": 3, "index": 3, "metrics": {"loss": 1 / 3}, "checkpoint": "checkpoint_a001_000003"}
    assert state_of(run) == RunState(3, 3, ({**lost, "late": True},), THREE)


# ---- many checkpoints


def of_ranks(run: Path, name: str, ranks: int) -> None:
    """A checkpoint with the manifests of so many ranks."""
    (run / name / checkpoint_manifest.FOLDER).mkdir(parents=True)
    for rank in range(ranks):
        (run / name / f"part-{rank}").write_bytes(b"weights")
        files = {f"part-{rank}": [7, 0]}
        (run / name / checkpoint_manifest.FOLDER / f"{rank:05}.json").write_text(json.dumps({"files": files}))


NAMES = [f"checkpoint_a001_{number:06}" for number in range(1, 101)]
#: the lowest loss is that of the 50th
LOSSES = [abs(50 - number) + 1.0 for number in range(1, 101)]
BY_LOSS = CheckpointConfig(checkpoint_score_attribute="loss", checkpoint_score_order="min")


@pytest.fixture
def many(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    for name in NAMES:
        of_ranks(folder, name, ranks=4)
    journal(folder, *((name, {"loss": loss}) for name, loss in zip(NAMES, LOSSES, strict=True)))
    return folder


def test_a_resume_over_many_checkpoints_of_many_ranks_makes_few_requests(
    many: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Counter[str] = Counter()
    for name in ("read", "names", "files"):
        monkeypatch.setattr(Location, name, counted(getattr(Location, name), calls))
    assert "was rebuilt with 100 checkpoint(s)" in repair(many, BY_LOSS)
    calls.clear()
    assert repair(many, BY_LOSS) == ""
    # a listing for each checkpoint; the manifests of the newest and the best alone
    assert calls["names"] <= len(NAMES) + 10
    assert calls["files"] == 2
    assert calls["read"] <= 2 * 4 + 5


def counted(function: Any, calls: Counter[str]) -> Any:
    def count(self: Location, *args: Any, **options: Any) -> Any:
        calls[function.__name__] += 1
        return function(self, *args, **options)

    return count


def test_a_damaged_newest_or_best_checkpoint_gives_way_to_the_next_intact_one(many: Path) -> None:
    repair(many, BY_LOSS)
    for name in (NAMES[-1], NAMES[-2], NAMES[49]):
        (many / name / "part-2").write_bytes(b"cut")
    assert "lists 3 absent, empty or damaged directories" in repair(many, BY_LOSS)
    found = restored(many, checkpoint_score_attribute="loss", checkpoint_score_order="min")
    assert found[-1] == f"latest {NAMES[-3]}"
    assert found[-2] in (NAMES[48], NAMES[50])
    assert len(found) == 98


def test_before_training_ray_finds_its_checkpoints_with_one_listing(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repair(many, CONFIG)
    asked: list[Any] = []

    class Counting(SubTreeFileSystem):
        def get_file_info(self, what: Any) -> Any:
            asked.append(what)
            return super().get_file_info(what)

    filesystem = fenced_filesystem(str(many), 1)
    monkeypatch.setattr(filesystem.handler, "_fs", Counting("/", LocalFileSystem()))
    context = StorageContext(str(many.parent), many.name, storage_filesystem=filesystem)
    before = len(asked)
    manager = CheckpointManager(RayCheckpointConfig(), context)
    assert len(manager._checkpoint_results) == 100
    assert 1 <= len(asked) - before <= 3


def test_a_validation_that_had_not_ended_is_wanted_again_after_a_repair(run: Path) -> None:
    names = GOOD[:3]
    entries = [
        {"attempt": 1, "report": n, "metrics": {"loss": 1.0}, "checkpoint": name, "validation": {"fn_kwargs": {"n": n}}}
        for n, name in enumerate(names, 1)
    ]
    ended = {"phase": "validated", "checkpoint": names[0], "index": 1, "status": "validated", "metrics": {"accuracy": 0.5}}
    lines = "".join(json.dumps(entry) + "\n" for entry in [*entries, ended])
    (run / ".step/journal/001-0001.jsonl").write_text(lines)
    (run / SNAPSHOT).unlink()
    assert "was rebuilt" in repair(run, CONFIG)
    manager = CheckpointManager(RayCheckpointConfig(), StorageContext(str(run.parent), run.name))
    pending = manager.get_pending_training_results()
    assert {Path(checkpoint.path).name: task.fn_kwargs for checkpoint, (_, task) in pending.items()} == {
        names[1]: {"n": 2},
        names[2]: {"n": 3},
    }
    assert manager._checkpoint_results[0].metrics == {"loss": 1.0, "accuracy": 0.5}
    assert state_of(run).validating == ((names[1], 2), (names[2], 3))
