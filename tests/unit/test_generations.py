"""Which run directory a request of an engine means."""

import types
from pathlib import Path
from typing import Any

import pytest

from plugin_core import RunConfig, TrainSpec
from plugin_core.errors import SpecChangedError
from plugin_core.generations import lay_down, newest
from plugin_core.results import RunRef, TrainResult
from plugin_core.rundir import AttemptEnd, RunDir


def loop(config: dict[str, Any]) -> None:
    raise NotImplementedError


def mended(constant: int) -> Any:
    """The same function, by its name, with another code."""
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


def test_a_retry_goes_on_with_the_same_run_also_when_it_has_its_result(tmp_path: Path) -> None:
    first, _ = lay_down(spec_of(tmp_path), "monday#0")
    finish(first)
    assert lay_down(spec_of(tmp_path), "monday#0")[0].uri == first.uri
    first.deliver("monday#0")
    assert lay_down(spec_of(tmp_path), "monday#0")[0].uri == first.uri


def test_a_person_who_asks_again_after_the_result_gets_a_new_generation_and_its_retries_stay_in_it(tmp_path: Path) -> None:
    first, _ = lay_down(spec_of(tmp_path), "monday#0")
    finish(first)
    first.deliver("monday#0")
    second, remark = lay_down(spec_of(tmp_path), "monday#1")
    assert (second.uri, second.generation) == (f"{first.uri}.g2", 2)
    assert remark.startswith("generation 2 of the run: the result of the one before was handed over")
    assert lay_down(spec_of(tmp_path), "monday#1")[0].uri == second.uri
    assert first.result() is not None
    assert RunDir.at(second.uri).generation == 2


def test_a_person_who_asks_again_before_the_result_goes_on_with_the_run(tmp_path: Path) -> None:
    first, _ = lay_down(spec_of(tmp_path), "monday#0")
    first.claim(1, "http://x", "s")
    assert lay_down(spec_of(tmp_path), "monday#1")[0].uri == first.uri
    assert newest(spec_of(tmp_path)).uri == first.uri


def test_another_spec_is_refused_to_a_retry_and_is_a_new_generation_for_a_person(tmp_path: Path) -> None:
    first, _ = lay_down(spec_of(tmp_path, lr=1), "monday#0")
    first.claim(1, "http://x", "s")
    with pytest.raises(SpecChangedError, match=r"different: train_loop_config\.lr"):
        lay_down(spec_of(tmp_path, lr=2), "monday#0")
    second, remark = lay_down(spec_of(tmp_path, lr=2), "monday#1")
    assert second.generation == 2
    assert remark == "generation 2 of the run: the step is asked for again with another train_loop_config.lr"


@pytest.mark.parametrize(
    ("request_", "outcome", "code"),
    [("monday#0", "infrastructure", 1), ("monday#0", "user_error", 2), ("monday#1", "infrastructure", 2)],
)
def test_mended_code_goes_on_where_the_failed_run_was(tmp_path: Path, request_: str, outcome: str, code: int) -> None:
    """A person's request with the new code; a retry (somebody deployed meanwhile) with that it began with, unless that
    code is what failed."""
    first, _ = lay_down(spec_of(tmp_path, mended(1)), "monday#0")
    first.claim(1, "http://x", "s")
    first.record_end(1, AttemptEnd(outcome, "why"))
    again, remark = lay_down(spec_of(tmp_path, mended(2)), request_)
    assert again.uri == first.uri
    assert remark.startswith("the code changed since this run began; it goes on with the")
    assert again.read_payload()["train_loop_per_worker"]({}) == code


def test_an_attempt_that_may_live_keeps_its_code(tmp_path: Path) -> None:
    first, _ = lay_down(spec_of(tmp_path, mended(1)), "monday#0")
    first.claim(1, "http://x", "s")
    again, remark = lay_down(spec_of(tmp_path, mended(2)), "monday#1")
    assert remark.endswith("it goes on with the code that it began with")
    assert again.read_payload()["train_loop_per_worker"]({}) == 1


def test_mended_code_after_a_result_that_nobody_got_is_a_new_generation(tmp_path: Path) -> None:
    first, _ = lay_down(spec_of(tmp_path, mended(1)), "monday#0")
    finish(first)
    assert lay_down(spec_of(tmp_path, mended(2)), "monday#0")[0].uri == first.uri
    assert lay_down(spec_of(tmp_path, mended(2)), "monday#1")[0].generation == 2


def test_without_a_request_the_name_stands_for_one_run(tmp_path: Path) -> None:
    first, _ = lay_down(spec_of(tmp_path), None)
    finish(first)
    assert lay_down(spec_of(tmp_path), None)[0].uri == first.uri
    with pytest.raises(SpecChangedError):
        lay_down(spec_of(tmp_path, lr=2), None)
