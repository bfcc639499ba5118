"""The run directory: identity, receipts, and what a spec may change."""

import json
import threading
from pathlib import Path

import pytest

from devtools.steps import counting_loop
from plugin_core import RunConfig, ScalingConfig, TrainSpec
from plugin_core.errors import PayloadError, SpecChangedError, SpecError, StorageError
from plugin_core.runs.directory import AttemptEnd, Heartbeat, Intent, RunDir, run_name
from plugin_core.specs import FailureConfig, Limits
from plugin_core.specs.results import RunRef, TrainResult
from plugin_core.storage.location import Location

LOOP = "devtools.steps:counting_loop"


def spec_at(tmp_path: Path, **fields: object) -> TrainSpec:
    run_config = RunConfig(name="run", storage_path=str(tmp_path), **fields.pop("run_config", {}))  # type: ignore[arg-type]
    return TrainSpec(**{"train_loop_per_worker": LOOP, "run_config": run_config, **fields})  # type: ignore[arg-type]


def test_a_run_without_a_name_is_refused() -> None:
    with pytest.raises(SpecError, match=r"run_config\.name: missing"):
        RunDir.of(TrainSpec(train_loop_per_worker=LOOP))


def test_ray_storage_is_the_default_if_the_spec_names_no_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_STORAGE", str(tmp_path))
    spec = TrainSpec(train_loop_per_worker=LOOP, run_config=RunConfig(name="n"))
    assert RunDir.of(spec).uri == str(tmp_path / "n")


def test_a_storage_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    spec = spec_at(tmp_path / "file")
    with pytest.raises(StorageError, match=r"\.step/spec\.json cannot be (read|written)"):
        RunDir.of(spec).write_spec(spec)


def test_the_same_spec_may_be_written_again(tmp_path: Path) -> None:
    spec = spec_at(tmp_path)
    rundir = RunDir.of(spec)
    rundir.write_spec(spec)
    rundir.claim(1, "a", "i")
    rundir.write_spec(spec)
    assert rundir.read_spec() == spec


def test_another_spec_under_the_same_name_is_refused_naming_the_fields(tmp_path: Path) -> None:
    spec = spec_at(tmp_path, train_loop_config={"lr": 0.1})
    rundir = RunDir.of(spec)
    rundir.write_spec(spec)
    rundir.claim(1, "a", "i")
    other = spec_at(tmp_path, train_loop_config={"lr": 0.2}, scaling_config=ScalingConfig(num_workers=2))
    with pytest.raises(
        SpecChangedError, match=r"run_config.name: got 'run', which is already used for a different spec"
    ) as caught:
        rundir.write_spec(other)
    assert caught.value.fields == ("scaling_config.num_workers", "train_loop_config.lr")


def test_a_spec_that_never_ran_may_be_replaced(tmp_path: Path) -> None:
    rundir = RunDir.of(spec_at(tmp_path))
    rundir.write_spec(spec_at(tmp_path, train_loop_config={"lr": 0.1}))
    rundir.write_spec(spec_at(tmp_path, train_loop_config={"lr": 0.2}))
    assert rundir.read_record()["spec"]["train_loop_config"] == {"lr": 0.2}


def test_timeouts_and_retry_counts_may_change(tmp_path: Path) -> None:
    rundir = RunDir.of(spec_at(tmp_path))
    rundir.write_spec(spec_at(tmp_path))
    rundir.claim(1, "a", "i")
    rundir.write_spec(
        spec_at(tmp_path, limits=Limits(timeout_s=5), run_config={"failure_config": FailureConfig(max_failures=9)})
    )


def test_a_function_by_value_and_its_change_are_seen(tmp_path: Path) -> None:
    def changed(config: dict[str, object]) -> None:
        pass

    rundir = RunDir.of(spec_at(tmp_path))
    rundir.write_spec(spec_at(tmp_path, train_loop_per_worker=counting_loop))
    rundir.claim(1, "a", "i")
    assert rundir.read_record()["spec"]["train_loop_per_worker"].startswith("value:counting_loop#")
    assert rundir.read_payload()["train_loop_per_worker"].__name__ == "counting_loop"
    with pytest.raises(SpecChangedError, match="train_loop_per_worker"):
        rundir.write_spec(spec_at(tmp_path, train_loop_per_worker=changed))


def test_functions_from_another_python_are_refused_before_unpickling(tmp_path: Path) -> None:
    rundir = RunDir.of(spec_at(tmp_path))
    rundir.write_spec(spec_at(tmp_path, train_loop_per_worker=counting_loop))
    file = tmp_path / "run/.step/spec.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "python": "3.8.1"}))
    (tmp_path / "run/.step/payload.pkl").write_bytes(b"not a pickle")
    with pytest.raises(PayloadError, match=r"python: the step's functions were sent from Python 3\.8\.1"):
        rundir.read_payload()


def test_a_run_directory_newer_than_the_code_is_refused(tmp_path: Path) -> None:
    rundir = RunDir.of(spec_at(tmp_path))
    rundir.write_spec(spec_at(tmp_path))
    file = tmp_path / "run/.step/spec.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "schema": 7}))
    with pytest.raises(SpecError, match="schema: got 7; expected at most 1"):
        rundir.read_spec()


def test_exactly_one_of_many_claims_of_an_attempt_succeeds(tmp_path: Path) -> None:
    rundir = RunDir.at(str(tmp_path / "run"))
    for attempt in range(1, 21):
        start, got = threading.Barrier(8), []

        def claim(attempt: int = attempt, start: threading.Barrier = start, got: list[object] = got) -> None:
            start.wait()
            got.append(rundir.claim(attempt, "a", "i"))

        threads = [threading.Thread(target=claim) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(receipt is not None for receipt in got) == 1
    assert rundir.receipts() == list(range(1, 21))


def test_submission_ids_differ_by_storage_generation_and_attempt(tmp_path: Path) -> None:
    spec = spec_at(tmp_path)
    runs = [RunDir.of(spec), RunDir.of(spec, 2), RunDir.at(str(tmp_path / "other" / "run"))]
    ids = {run.claim(attempt, "a", "i").submission_id for run in runs for attempt in (1, 2)}  # type: ignore[union-attr]
    assert len({name.rsplit("-", 1)[0] for name in ids}) == 6
    assert runs[1].uri == str(tmp_path / "run.g2")
    assert RunDir.at(runs[1].uri).generation == 2


def test_written_data_is_read_back(tmp_path: Path) -> None:
    rundir = RunDir.at(str(tmp_path / "run"))
    assert (rundir.end(1), rundir.heartbeat(1), rundir.result(), rundir.intent()) == (None, None, None, Intent())
    rundir.record_end(1, AttemptEnd("user_error", "m", "d", 1.5))
    rundir.beat(1, Heartbeat(3, "training", 2.0))
    rundir.claim(1, "a", "i")
    rundir.cancel()
    result = TrainResult(run=RunRef(uri=rundir.uri, name="run"), metrics={"a": 1})
    rundir.write_result(result)
    assert rundir.end(1) == AttemptEnd("user_error", "m", "d", 1.5)
    assert rundir.heartbeat(1) == Heartbeat(3, "training", 2.0)
    assert rundir.intent().cancel_through == rundir.intent().whole_through == 1
    assert rundir.result() == result


def test_a_half_written_file_is_an_error_and_not_absence(tmp_path: Path) -> None:
    rundir = RunDir.at(str(tmp_path / "run"))
    rundir.claim(1, "a", "i")
    (tmp_path / "run/.step/attempts/001.json").write_text('{"attempt": "1')
    with pytest.raises(StorageError, match=r"001\.json (holds no JSON|is damaged)"):
        rundir.receipt(1)


def test_two_cancels_at_the_same_moment_do_not_overwrite_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancel of the whole run comes while an attempt's is being written."""
    rundir = RunDir.at(str(tmp_path / "run"))
    for attempt in (1, 2):
        rundir.claim(attempt, "a", "i")
    create, others = Location.create, [rundir.cancel]

    def with_another_before(place: Location, data: bytes) -> bool:
        while others:
            others.pop()()
        return create(place, data)

    monkeypatch.setattr(Location, "create", with_another_before)
    rundir.cancel(1)
    intent = rundir.intent()
    assert (intent.cancel_through, intent.whole_through, len(intent.whole_run)) == (2, 2, 1)
    rundir.cancel()
    assert len(rundir.intent().whole_run) == 2, "each of them is known by the calls that follow the run"


def test_a_run_directory_that_an_earlier_version_cancelled_is_read(tmp_path: Path) -> None:
    rundir = RunDir.at(str(tmp_path / "run"))
    rundir.claim(1, "a", "i")
    step = tmp_path / "run/.step"
    (step / "heartbeat").mkdir()
    (step / "heartbeat/001.json").write_text('{"counter": 7, "phase": "training", "links": {"mlflow": "http://x"}}')
    (step / "intent.json").write_text('{"cancel_through": 1, "whole_run": "ab12", "whole_through": 1}')
    assert rundir.heartbeat(1) == Heartbeat(7, "training")
    assert rundir.intent() == Intent(1, frozenset({"ab12"}), 1)
    assert rundir.cancel(3) == Intent(3, frozenset({"ab12"}), 1)


def test_a_run_name_is_safe_stable_and_keeps_long_ids_apart() -> None:
    assert run_name("prod", "dag", "task") == "prod--dag--task"
    name = run_name("prod", "dag", "manual__2026-11-21T00:00:00+00:00", "task", "3")
    assert RunConfig(name=name).name == run_name("prod", "dag", "manual__2026-11-21T00:00:00+00:00", "task", "3")
    assert run_name("a/b") != run_name("a_b") != run_name("a:b")
    assert run_name("x" * 500) != run_name("x" * 501)
    assert len(run_name("x" * 500)) <= 96


def test_a_cancel_is_never_taken_back_and_names_the_attempts_it_means(tmp_path: Path) -> None:
    rundir = RunDir.at(str(tmp_path / "run"))
    for attempt in (1, 2, 3):
        rundir.claim(attempt, "a", "i")
    assert rundir.cancel(2) == rundir.intent() == Intent(cancel_through=2)
    assert rundir.cancel(1) == Intent(cancel_through=2)
    whole = rundir.cancel()
    assert (whole.cancel_through, whole.whole_through) == (3, 3)
    assert rundir.cancel(2) == whole


def test_the_first_record_of_an_end_or_a_result_is_kept(tmp_path: Path) -> None:
    rundir = RunDir.at(str(tmp_path / "run"))
    for word in ("first", "second"):
        rundir.record_end(1, AttemptEnd("infrastructure", word))
        kept = rundir.write_result(TrainResult(run=RunRef(uri=rundir.uri, name="run"), metrics={"who": word}))
        assert kept.metrics == {"who": "first"}
    assert rundir.end(1) == AttemptEnd("infrastructure", "first")


def test_fields_that_a_later_version_adds_are_ignored(tmp_path: Path) -> None:
    rundir = RunDir.at(str(tmp_path / "run"))
    receipt = rundir.claim(1, "a", "i")
    file = tmp_path / "run/.step/attempts/001.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "of_the_future": 1}))
    assert rundir.receipt(1) == receipt
