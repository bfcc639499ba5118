"""The registry of files: versions, an alias that moves by compare-and-swap, rollback; the lease; pins."""

import json
import math
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plugin_core import CheckpointRef, EvaluationResult, RunRef, TrainResult, get_model, promote, rollback
from plugin_core.driver import retrain
from plugin_core.driver.fenced_filesystem import fenced_filesystem
from plugin_core.errors import AliasMovedError, LeaseHeldError, PromotionRefusedError, SpecError, UserCodeError
from plugin_core.registry.api import default_registry, why_older
from plugin_core.registry.base import ModelVersion
from plugin_core.registry.files import FileRegistry
from plugin_core.registry.training_lease import Lease
from plugin_core.runs.context import StepContext
from plugin_core.runs.directory import Heartbeat, RunDir
from plugin_core.runs.pins import pin, pinned, unpin
from plugin_core.specs import Evaluation, RetrainSpec, RunConfig, TrainSpec
from plugin_core.storage.location import Location
from plugin_core.supervisor.generations import lay_down

SPEC = {"framework": "python", "train_loop_per_worker": "devtools.steps:counting_loop"}


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def trained(storage: Path, name: str) -> TrainResult:
    """A run with one checkpoint, as a training leaves it."""
    rundir = RunDir.of(TrainSpec(**SPEC, run_config=RunConfig(name=name, storage_path=str(storage))))
    rundir.write_spec(TrainSpec(**SPEC, run_config=RunConfig(name=name, storage_path=str(storage))))
    place = rundir.location.child("checkpoint_1")
    place.child("weights").write(b"w")
    return TrainResult(run=RunRef(uri=rundir.uri, name=name), checkpoint=CheckpointRef(uri=place.uri), reports=1)


def judged(result: TrainResult, passed: bool = True, compared_to: str | None = None) -> EvaluationResult:
    return EvaluationResult(
        run=RunRef(uri=f"{result.run.uri}-evaluation", name="e"),
        metrics={"accuracy": 0.9},
        passed=passed,
        failed={} if passed else {"accuracy": "0.9 < min 0.95 (by 0.05)"},
        checkpoint=result.checkpoint,
        compared_to=compared_to,
    )


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    return {"registry": str(tmp_path / "models")}


def test_a_promotion_registers_with_lineage_and_moves_the_alias(storage: Path, options: dict[str, Any]) -> None:
    first = trained(storage, "one")
    model = promote(judged(first), "digits", dataset="d1", **options)
    assert model == get_model("digits", **options)
    assert (model.version, model.checkpoint, model.run) == (1, first.checkpoint.uri, first.run.uri)
    assert (model.evaluation, model.metrics, model.dataset) == (f"{first.run.uri}-evaluation", {"accuracy": 0.9}, "d1")
    second = promote(trained(storage, "two"), "digits", **options)
    assert second.version == 2
    assert get_model("digits", "staging", **options) is None
    assert [model.version for model in FileRegistry(Location.of(options["registry"])).versions("digits")] == [1, 2]


def test_promoting_again_is_the_same_promotion(storage: Path, options: dict[str, Any]) -> None:
    result = judged(trained(storage, "one"))
    assert promote(result, "digits", **options) == promote(result.to_json(), "digits", **options)
    assert promote(result.checkpoint.uri, "digits", "staging", **options).version == 1


def test_each_rollback_goes_one_version_further_back(storage: Path, options: dict[str, Any]) -> None:
    for name in ("one", "two", "three"):
        promote(trained(storage, name), "digits", **options)
    assert rollback("digits", **options).version == 2
    assert rollback("digits", **options).version == 1
    with pytest.raises(SpecError, match="alias: got 'champion' of 'digits', which has no previous version"):
        rollback("digits", **options)
    assert promote(trained(storage, "four"), "digits", **options).version == 4
    assert rollback("digits", **options).version == 1


def test_an_evaluation_that_did_not_pass_is_promoted_only_by_force(storage: Path, options: dict[str, Any]) -> None:
    result = judged(trained(storage, "one"), passed=False)
    with pytest.raises(PromotionRefusedError, match=r"did not pass \(accuracy: 0.9 < min 0.95"):
        promote(result, "digits", **options)
    assert get_model("digits", **options) is None
    assert promote(result, "digits", force=True, **options).version == 1


def test_an_alias_that_moved_since_the_evaluation_is_not_moved(storage: Path, options: dict[str, Any]) -> None:
    old = promote(trained(storage, "old"), "digits", **options)
    result = judged(trained(storage, "new"), compared_to=old.checkpoint)
    promote(trained(storage, "other"), "digits", **options)
    with pytest.raises(AliasMovedError, match=r"is at version 2 .* but the evaluation compared to .*moved meanwhile"):
        promote(result, "digits", **options)
    with pytest.raises(AliasMovedError, match="moved meanwhile, from version 1 to 2"):
        promote(result, "digits", expected=1, **options)
    assert get_model("digits", **options).version == 2
    assert promote(result, "digits", force=True, **options).version == 3


def test_exactly_one_of_many_concurrent_alias_moves_succeeds(tmp_path: Path) -> None:
    registry = FileRegistry(Location.of(str(tmp_path)))
    outcomes: list[str] = []

    def move(to: int) -> None:
        try:
            registry.move("digits", "champion", to, 0)
            outcomes.append(f"moved to {to}")
        except AliasMovedError:
            outcomes.append("moved meanwhile")

    threads = [threading.Thread(target=move, args=(to,)) for to in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("moved meanwhile") == 7


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: promote("/nowhere/checkpoint", "digits"),
            "checkpoint: got '/nowhere/checkpoint', which does not exist or was deleted",
        ),
        (lambda: promote("/x", "a/b"), "name: got 'a/b'; expected 1 to 100 letters"),
        (lambda: promote("/x", "digits", ".."), "alias: got '..'; expected"),
        (lambda: promote(3, "digits"), "result: got '3'; expected a result, or a checkpoint's URI"),
        (lambda: promote("/x", "digits", registry="ftp://x/y"), "registry: got 'ftp://x/y'; expected a local path"),
    ],
)
def test_bad_input_is_reported_before_anything_moves(call: Any, words: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("RAY_STORAGE", str(tmp_path))
    with pytest.raises(SpecError) as caught:
        call()
    assert words in caught.value.message
    assert get_model("digits") is None


# ---- age

MONDAY, TUESDAY, FRIDAY = (1_800_000_000.0 + day * 86_400 for day in (0, 1, 4))


def reported(result: TrainResult, at: float) -> TrainResult:
    """The training's journal says that it reported its checkpoint then."""
    entry = {"attempt": 1, "time": at, "report": 1, "metrics": {}, "checkpoint": "checkpoint_1"}
    journal = RunDir.at(result.run.uri).step.child("journal", "001-0000001.jsonl")
    journal.write(f"{json.dumps(entry)}\n".encode())
    return result


def repeated(storage: Path, name: str, requests: list[str], times: list[float]) -> TrainResult:
    """The last generation of a run that was requested and finished that often."""
    given = TrainSpec(**SPEC, run_config=RunConfig(name=name, storage_path=str(storage)))
    for request, at in zip(requests, times, strict=True):
        rundir, _ = lay_down(given, request)
        rundir.location.child("checkpoint_1", "weights").write(b"w")
        checkpoint = CheckpointRef(uri=rundir.location.child("checkpoint_1").uri)
        result = TrainResult(run=RunRef(uri=rundir.uri, name=rundir.name), checkpoint=checkpoint, reports=1)
        reported(result, at)
        rundir.write_result(result)
        rundir.deliver(request)
    return result


def test_an_older_checkpoint_moves_no_champion_back_and_says_so(storage: Path, options: dict[str, Any]) -> None:
    old, new = reported(trained(storage, "old"), MONDAY), reported(trained(storage, "new"), TUESDAY)
    assert promote(old, "digits", **options).kept == ""
    assert promote(new, "digits", **options).version == 2
    kept = promote(judged(old), "digits", **options)
    assert (kept.version, kept.checkpoint) == (2, new.checkpoint.uri)
    assert kept.kept == (
        "the champion of digits stays version 2: the new checkpoint was made at 2027-01-15 08:00:00 UTC,"
        " the current one at 2027-01-16 08:00:00 UTC; allow_older=True promotes it anyway"
    )
    assert get_model("digits", **options).model_dump() == {**kept.model_dump(), "kept": ""}
    assert promote(old, "digits", allow_older=True, **options).version == 1
    assert promote(new, "digits", **options).version == 2
    assert promote(old, "digits", force=True, **options).version == 1


def test_an_older_evaluation_keeps_a_champion_that_moved_since(storage: Path, options: dict[str, Any]) -> None:
    """A cleared DAG run must not fail for it."""
    first = promote(reported(trained(storage, "first"), MONDAY), "digits", **options)
    late = judged(reported(trained(storage, "late"), TUESDAY), compared_to=first.checkpoint)
    promote(reported(trained(storage, "newest"), FRIDAY), "digits", **options)
    assert promote(late, "digits", **options).kept
    with pytest.raises(AliasMovedError):
        promote(late, "digits", allow_older=True, **options)


def test_a_model_that_an_old_run_of_an_engine_trains_again_is_as_old_as_the_run(
    storage: Path, options: dict[str, Any]
) -> None:
    promote(reported(trained(storage, "tuesday"), TUESDAY), "digits", **options)
    again = repeated(storage, "monday", ["monday#0", "monday#1", "monday#2"], [MONDAY, FRIDAY, FRIDAY])
    assert again.run.uri.endswith("monday.g3")
    assert "at 2027-01-15" in promote(again, "digits", **options).kept
    # another run of the engine that shares the name, by the user's choice, is new work
    other = repeated(storage, "fixed", ["monday#0", "friday#0"], [MONDAY, FRIDAY])
    assert promote(other, "digits", **options).kept == ""
    flows = repeated(storage, "flow", ["0a1b", "2c3d"], [MONDAY, FRIDAY + 1])
    assert promote(flows, "digits", **options).kept == ""


def test_a_checkpoint_of_unknown_age_is_promoted(storage: Path, options: dict[str, Any], tmp_path: Path) -> None:
    promote(reported(trained(storage, "known"), FRIDAY), "digits", **options)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "weights").touch()
    assert promote(str(tmp_path / "elsewhere"), "digits", **options).kept == ""
    assert promote(reported(trained(storage, "old"), MONDAY), "digits", **options).kept == ""


@pytest.mark.parametrize("time", [1e300, math.nan, math.inf, -1.0])
def test_a_model_whose_files_tell_a_time_that_is_none_blocks_no_promotion(
    storage: Path, options: dict[str, Any], time: float
) -> None:
    promote(reported(trained(storage, "odd"), time), "digits", **options)
    assert promote(reported(trained(storage, "new"), MONDAY), "digits", **options).kept == ""
    champion = ModelVersion(name="digits", version=1, checkpoint="/c", made=time)
    assert why_older(champion, MONDAY) == ""


def test_a_repeated_retraining_older_than_the_champion_trains_nothing(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = default_registry(str(storage))
    again = RunDir.at(repeated(storage, "monday", ["monday#0", "monday#1"], [MONDAY, FRIDAY]).run.uri)
    promote(reported(trained(storage, "tuesday"), TUESDAY), "digits", registry=registry)
    trainings: list[str] = []
    monkeypatch.setattr("plugin_core.driver.retrain._train", lambda *given: trainings.append("one") or 1 / 0)
    gate = Evaluation(evaluate="a:b", thresholds={"accuracy": {"min": 0.5}})
    spec = RetrainSpec(model="digits", train=TrainSpec(**SPEC), evaluate=gate)
    context = StepContext(spec, again, 1, {}, lambda phase: None)
    result = retrain.run(context)
    assert (result.outcome, result.champion, trainings) == ("kept", 1, [])
    assert "version 1 stays: the new checkpoint was made at 2027-01-15 08:00:00 UTC" in result.reason
    with pytest.raises(ZeroDivisionError):
        retrain.run(replace(context, spec=spec.model_copy(update={"allow_older": True})))


def test_a_retraining_whose_training_made_no_checkpoint_fails_and_stores_no_result_of_it(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So mended code trains again."""
    nothing = TrainResult(run=RunRef(uri=str(storage / "x"), name="x"))
    monkeypatch.setattr("plugin_core.driver.retrain.run_step", lambda part: nothing)
    rundir = RunDir.at(trained(storage, "monday").run.uri)
    gate = Evaluation(evaluate="a:b", thresholds={"accuracy": {"min": 0.5}})
    spec = RetrainSpec(model="digits", train=TrainSpec(**SPEC), evaluate=gate)
    with pytest.raises(UserCodeError, match="train: reported no checkpoint; a retraining needs one"):
        retrain.run(StepContext(spec, rundir, 1, {}, lambda phase: None))
    assert rundir.child(retrain.part_name(rundir, "train")).result() is None


# ---- pins


def test_a_pinned_checkpoint_is_not_deleted_by_retention(storage: Path) -> None:
    result = trained(storage, "one")
    rundir, name = RunDir.at(result.run.uri), "checkpoint_1"
    filesystem = fenced_filesystem(rundir.uri, 1)
    pin(result.checkpoint.uri, by="a child run")
    pin(result.checkpoint.uri, by="model digits version 1")
    filesystem.delete_dir(result.checkpoint.uri)
    assert pinned(rundir, name)
    unpin(result.checkpoint.uri, by="a child run")
    filesystem.delete_dir(result.checkpoint.uri)
    assert rundir.location.child(name, "weights").exists()
    unpin(result.checkpoint.uri, by="model digits version 1")
    filesystem.delete_dir(result.checkpoint.uri)
    assert not rundir.location.child(name).exists()


def test_a_pin_that_comes_too_late_says_so(storage: Path) -> None:
    result = trained(storage, "one")
    RunDir.at(result.run.uri).location.child("checkpoint_1").delete_dir()
    with pytest.raises(SpecError, match="which does not exist or was deleted"):
        pin(result.checkpoint.uri, by="me")


# ---- the lease


def waiting(told: list[str]) -> Any:
    return told.append


def test_a_lease_is_held_by_one_and_taken_over_from_the_dead(storage: Path, tmp_path: Path) -> None:
    place = Location.of(str(tmp_path / "leases"))
    one, two = (trained(storage, name).run.uri for name in ("one", "two"))
    told: list[str] = []
    RunDir.at(one).claim(1, "a", "i")
    Lease(place, one).acquire(30, wait=True, on_wait=waiting(told))
    with pytest.raises(LeaseHeldError, match=f"is being retrained by {one}"):
        Lease(place, two).acquire(30, wait=False, on_wait=waiting(told))
    # its own later attempt goes on with it
    Lease(place, one).acquire(30, wait=False, on_wait=waiting(told))
    # silent for the TTL: taken over, and the first one cannot give away what it has no more
    late = Lease(place, one)
    late.acquire(30, wait=False, on_wait=waiting(told))
    Lease(place, two).acquire(0.01, wait=True, on_wait=waiting(told))
    late.release()
    assert told == [one]
    with pytest.raises(LeaseHeldError, match=f"is being retrained by {two}"):
        Lease(place, one).acquire(30, wait=False, on_wait=waiting(told))


def test_a_released_lease_is_free_at_once(storage: Path, tmp_path: Path) -> None:
    place = Location.of(str(tmp_path / "leases"))
    first = Lease(place, trained(storage, "one").run.uri)
    first.acquire(30, wait=False, on_wait=print)
    first.release()
    first.release()
    Lease(place, trained(storage, "two").run.uri).acquire(30, wait=False, on_wait=print)


def test_a_holder_whose_heart_beats_is_waited_for(storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Location.of(str(tmp_path / "leases"))
    holder = RunDir.at(trained(storage, "one").run.uri)
    holder.claim(1, "a", "i")
    lease = Lease(place, holder.uri)
    lease.acquire(30, wait=False, on_wait=print)
    looks = 0

    def pause(seconds: float) -> None:
        nonlocal looks
        looks += 1
        holder.beat(1, Heartbeat(looks, "training"))
        if looks == 5:
            lease.release()

    monkeypatch.setattr("plugin_core.registry.training_lease.time.sleep", pause)
    told: list[str] = []
    Lease(place, trained(storage, "two").run.uri).acquire(3600, wait=True, on_wait=waiting(told))
    assert looks == 5
    assert set(told) == {holder.uri}
