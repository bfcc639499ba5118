"""Which run directory an engine's request maps to."""

import json
import types
from pathlib import Path
from typing import Any

import pytest

from plugin_core import RunConfig, TrainSpec
from plugin_core.errors import SpecChangedError, SpecError
from plugin_core.runs.directory import AttemptEnd, RunDir
from plugin_core.runs.requests import MOST, Request
from plugin_core.specs.results import RunRef, TrainResult
from plugin_core.supervisor.generations import lay_down, newest_run


def loop(config: dict[str, Any]) -> None:
    raise NotImplementedError


def mended(constant: int) -> Any:
    """A function of the same name with different code."""
    namespace: dict[str, Any] = {}
    exec(compile(f"def loop(config):\n    return {constant}", "dag.py", "exec"), namespace)
    function: types.FunctionType = namespace["loop"]
    function.__module__ = "__main__"
    return function


def spec_of(folder: Path, train_loop: Any = loop, **config: Any) -> TrainSpec:
    return TrainSpec(
        framework="python",
        train_loop_per_worker=train_loop,
        train_loop_config=config,
        run_config=RunConfig(name="run", storage_path=str(folder)),
    )


def finish(rundir: RunDir) -> None:
    rundir.claim(1, "http://x", "s")
    rundir.record_end(1, AttemptEnd("succeeded"))
    rundir.write_result(TrainResult(run=RunRef(uri=rundir.uri, name=rundir.name)))


def test_a_retry_continues_the_same_run_even_if_it_has_a_result(tmp_path: Path) -> None:
    first, _ = lay_down(spec_of(tmp_path), "monday#0")
    finish(first)
    assert lay_down(spec_of(tmp_path), "monday#0")[0].uri == first.uri
    first.deliver("monday#0")
    assert lay_down(spec_of(tmp_path), "monday#0")[0].uri == first.uri


def test_a_new_request_after_the_result_starts_a_new_generation_and_its_retries_stay_in_it(tmp_path: Path) -> None:
    first, _ = lay_down(spec_of(tmp_path), "monday#0")
    finish(first)
    first.deliver("monday#0")
    second, remark = lay_down(spec_of(tmp_path), "monday#1")
    assert (second.uri, second.generation) == (f"{first.uri}.g2", 2)
    assert remark.startswith("generation 2 of the run: the step is started again after its result was returned")
    assert lay_down(spec_of(tmp_path), "monday#1")[0].uri == second.uri
    assert first.result() is not None
    assert RunDir.at(second.uri).generation == 2


def test_a_new_request_before_the_result_continues_the_run(tmp_path: Path) -> None:
    first, _ = lay_down(spec_of(tmp_path), "monday#0")
    first.claim(1, "http://x", "s")
    assert lay_down(spec_of(tmp_path), "monday#1")[0].uri == first.uri
    assert newest_run(spec_of(tmp_path)).uri == first.uri


def test_a_changed_spec_is_rejected_for_a_retry_and_starts_a_new_generation_for_a_new_request(tmp_path: Path) -> None:
    first, _ = lay_down(spec_of(tmp_path, lr=1), "monday#0")
    first.claim(1, "http://x", "s")
    with pytest.raises(SpecChangedError, match=r"different: train_loop_config\.lr"):
        lay_down(spec_of(tmp_path, lr=2), "monday#0")
    second, remark = lay_down(spec_of(tmp_path, lr=2), "monday#1")
    assert second.generation == 2
    assert remark == "generation 2 of the run: the step is started again with changes in train_loop_config.lr"


@pytest.mark.parametrize(
    ("request_", "outcome", "code"),
    [("monday#0", "infrastructure", 1), ("monday#0", "user_error", 2), ("monday#1", "infrastructure", 2)],
)
def test_fixed_code_continues_the_failed_run(tmp_path: Path, request_: str, outcome: str, code: int) -> None:
    """A person's request uses the new code; a retry (after a deploy in between) the original code, unless that is what
    failed."""
    first, _ = lay_down(spec_of(tmp_path, mended(1)), "monday#0")
    first.claim(1, "http://x", "s")
    first.record_end(1, AttemptEnd(outcome, "why"))
    again, remark = lay_down(spec_of(tmp_path, mended(2)), request_)
    assert again.uri == first.uri
    assert remark.startswith("the code changed since this run started; continuing with the")
    assert again.read_payload()["train_loop_per_worker"]({}) == code


def test_an_attempt_that_may_be_alive_keeps_its_code(tmp_path: Path) -> None:
    first, _ = lay_down(spec_of(tmp_path, mended(1)), "monday#0")
    first.claim(1, "http://x", "s")
    again, remark = lay_down(spec_of(tmp_path, mended(2)), "monday#1")
    assert remark.endswith("continuing with the original code")
    assert again.read_payload()["train_loop_per_worker"]({}) == 1


def test_fixed_code_after_an_undelivered_result_starts_a_new_generation(tmp_path: Path) -> None:
    first, _ = lay_down(spec_of(tmp_path, mended(1)), "monday#0")
    finish(first)
    assert lay_down(spec_of(tmp_path, mended(2)), "monday#0")[0].uri == first.uri
    assert lay_down(spec_of(tmp_path, mended(2)), "monday#1")[0].generation == 2


def test_without_a_request_a_name_means_one_run(tmp_path: Path) -> None:
    first, _ = lay_down(spec_of(tmp_path), None)
    finish(first)
    assert lay_down(spec_of(tmp_path), None)[0].uri == first.uri
    with pytest.raises(SpecChangedError):
        lay_down(spec_of(tmp_path, lr=2), None)


def test_the_newest_of_300_generations_is_found_in_few_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0
    is_of = RunDir.is_of

    def counted(self: RunDir, name: str) -> bool:
        nonlocal reads
        reads += 1
        return is_of(self, name)

    monkeypatch.setattr(RunDir, "is_of", counted)
    spec = spec_of(tmp_path)
    record = json.dumps({"spec": {"run_config": {"name": "run"}}}).encode()
    for count, most in [(1, 1), (2, 3), (7, 7), (8, 7), (300, 20)]:
        for generation in range(1, count + 1):
            place = RunDir.of(spec, generation).step.child("spec.json")
            if not place.exists():
                place.write(record)
        reads = 0
        assert newest_run(spec).generation == count
        assert reads <= most


def test_a_users_run_named_like_a_generation_is_not_one_and_is_not_overwritten(tmp_path: Path) -> None:
    """Such names are rejected now; older versions accepted them."""
    users = spec_of(tmp_path / "elsewhere").with_name("other", str(tmp_path))
    lay_down(users, None)
    (tmp_path / "elsewhere/other").rename(tmp_path / "run.g2")
    kept = (tmp_path / "run.g2/.step/spec.json").read_bytes()
    first, _ = lay_down(spec_of(tmp_path), "monday#0")
    finish(first)
    assert newest_run(spec_of(tmp_path)).uri == first.uri
    first.deliver("monday#0")
    with pytest.raises(SpecError, match=r"run_config.name: got 'run', whose generation 2 would be .*, which is another"):
        lay_down(spec_of(tmp_path), "monday#1")
    assert (tmp_path / "run.g2/.step/spec.json").read_bytes() == kept
    assert RunDir.at(str(tmp_path / "run.g2")).read_spec().run_config.name == "other"
    with pytest.raises(SpecError, match=r"run_config.name: got 'new.g2'; expected a name without the suffix .gN"):
        lay_down(spec_of(tmp_path).with_name("new.g2"), None)


def test_a_retry_of_one_of_two_engine_runs_under_one_name_stays_in_the_run_that_the_other_one_finished(
    tmp_path: Path,
) -> None:
    first, _ = lay_down(spec_of(tmp_path), "monday#0")
    assert lay_down(spec_of(tmp_path), "tuesday#0")[0].uri == first.uri
    finish(first)
    first.deliver("monday#0")
    assert lay_down(spec_of(tmp_path), "tuesday#0")[0].uri == first.uri
    first.deliver("tuesday#0")
    for request in ("monday#0", "tuesday#0"):
        assert lay_down(spec_of(tmp_path), request)[0].uri == first.uri
    assert lay_down(spec_of(tmp_path), "monday#1")[0].generation == 2


def test_a_retry_of_one_of_two_engine_runs_may_not_change_the_spec(tmp_path: Path) -> None:
    first, _ = lay_down(spec_of(tmp_path, lr=1), "monday#0")
    lay_down(spec_of(tmp_path, lr=1), "tuesday#0")
    first.claim(1, "http://x", "s")
    with pytest.raises(SpecChangedError):
        lay_down(spec_of(tmp_path, lr=2), "monday#0")
    assert lay_down(spec_of(tmp_path, lr=2), "wednesday#0")[0].generation == 2


def test_requests_are_read_by_earlier_versions_and_theirs_by_this_one(tmp_path: Path) -> None:
    first, _ = lay_down(spec_of(tmp_path), "monday#0")
    lay_down(spec_of(tmp_path), "monday#1")
    file = tmp_path / "run/.step/request.json"
    now = json.loads(file.read_text())
    assert (now["asked"], now["delivered"]) == ("monday#1", "")
    file.write_text(json.dumps({"asked": "monday#1", "delivered": ""}))
    assert first.request() == Request("monday#1")
    file.write_text(json.dumps({"asked": "monday#1", "delivered": "", "added": "by a later version"}))
    assert first.request() == Request("monday#1")


def test_the_kept_requests_are_bounded(tmp_path: Path) -> None:
    first, _ = lay_down(spec_of(tmp_path), "0")
    for request in map(str, range(1, MOST + 20)):
        first.ask(request)
    assert len(first.request().others) == MOST
    assert not first.request().is_new("100")
    assert first.request().is_new("1")
