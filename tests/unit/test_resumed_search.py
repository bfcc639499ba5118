"""What a search takes from a finished one. Without Ray."""

import json
from pathlib import Path
from typing import Any

import pytest

from plugin_core import RunRef, TrainResult
from plugin_core.driver.tune.collect import collect
from plugin_core.driver.tune.resumed import RESUMED, release, resumed
from plugin_core.errors import SpecError
from plugin_core.runs import finished_search
from plugin_core.runs.directory import RunDir
from plugin_core.runs.pins import pinned
from plugin_core.specs.resume_search import ResumeSearch
from plugin_core.supervisor import kind_checks
from tests.support.finished_search import begun, contents, finished, row, search
from tests.support.grid import grid_result

# ---- the field


def test_a_search_is_named_by_its_run_its_result_or_that_as_a_dict(tmp_path: Path) -> None:
    old = finished(tmp_path)
    result = old.result()
    assert result is not None
    forms = (old.uri, {"search": old.uri}, result, result.to_json(), {"search": result.to_json(), "trials": "none"})
    for form in forms:
        assert search(tmp_path, resume_from=form).resume_from == ResumeSearch(search=old.uri)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"resume_from": 5}, "resume_from: got 5; expected"),
        ({"resume_from": {"kind": "train"}}, "resume_from.search: got a result of kind 'train'; expected a search's"),
        ({"resume_from": {"kind": "tune"}}, "resume_from.search: got {'kind': 'tune'}; the tune result given names no run"),
        ({"resume_from": {"search": "/x", "trials": "most"}}, "resume_from.trials: got 'most'; expected 'none', 'best' or"),
        ({"resume_from": {"trials": "all"}}, "resume_from.search: missing"),
        (
            {"resume_from": {"search": "/x", "trials": "all"}, "num_samples": 5},
            "num_samples: got 5 with resume_from.trials 'all', which samples nothing; expected it left out",
        ),
        (
            {"resume_from": {"search": "/x", "trials": "best"}, "search_alg": "optuna"},
            "search_alg: got 'optuna' with resume_from.trials 'best', which samples nothing; expected it left out",
        ),
    ],
)
def test_what_is_no_finished_search_is_refused(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError) as caught:
        search(tmp_path, **fields)
    assert words in caught.value.message


# ---- before the submit


def test_a_search_that_cannot_be_gone_on_from_is_refused_before_the_submit(tmp_path: Path) -> None:
    old = finished(tmp_path)
    unfinished = search(tmp_path, "unfinished")
    RunDir.of(unfinished).write_spec(unfinished)
    training = unfinished.train.with_name("training", str(tmp_path))
    RunDir.of(training).write_spec(training)
    nothing = finished(tmp_path, [row(1, None)], "nothing")
    for uri, fields, words in (
        (f"{tmp_path}/nowhere", {}, r"search: got '.*nowhere', which is not a run directory; expected that of a finished"),
        (RunDir.of(training).uri, {}, "a run of kind 'train'; expected a search"),
        (RunDir.of(unfinished).uri, {}, "which has no result yet; expected a finished search"),
        (nothing.uri, {}, r"in which no trial has 'value' \(max\); expected one that has"),
        (old.uri, {"metric": "loss"}, r"got a search for the best 'value' \(max\); expected one for 'loss' \(max\)"),
        (old.uri, {"mode": "min"}, r"got a search for the best 'value' \(max\); expected one for 'value' \(min\)"),
    ):
        with pytest.raises(SpecError, match=words):
            kind_checks.tune(search(tmp_path, **{"resume_from": uri, **fields}), here=True)
    old.location.child("trials.json").delete()
    with pytest.raises(SpecError, match=r"whose table trials\.json is missing"):
        kind_checks.tune(search(tmp_path, resume_from=old.uri), here=True)


def test_a_run_that_has_begun_is_not_refused_for_what_became_of_the_finished_search(tmp_path: Path) -> None:
    old = finished(tmp_path)
    spec = search(tmp_path, resume_from=old.uri)
    resumed(begun(spec))
    old.location.child("trials.json").delete()
    kind_checks.tune(spec, here=True)


def test_a_torn_table_is_left_to_the_cluster_and_ends_the_attempt_there(tmp_path: Path) -> None:
    from plugin_core.errors import StorageError

    old = finished(tmp_path)
    old.location.child("trials.json").write(b'[{"run": "trial-t1", ')
    spec = search(tmp_path, resume_from=old.uri)
    kind_checks.tune(spec, here=True)
    with pytest.raises(StorageError, match=r"trials\.json is damaged"):
        resumed(begun(spec))


# ---- what is taken


def test_trials_are_kept_and_the_checkpoint_of_the_best_is_pinned(tmp_path: Path) -> None:
    old = finished(tmp_path)
    before = contents(old)
    context = begun(search(tmp_path, resume_from=old.uri, num_samples=4))
    taken = resumed(context)
    assert taken is not None
    assert taken.given is None
    assert [(RunDir.at(each["run"]).name, each["status"]) for each in taken.kept] == [
        ("trial-t1", "kept"),
        ("trial-t2", "kept"),
    ]
    assert [pinned(old.child(f"trial-t{number}"), "checkpoint_1") for number in (1, 2)] == [False, True]
    assert contents(old) == before, "the finished search stays as it is"


def test_a_retry_takes_what_the_first_attempt_took_even_if_the_finished_search_is_gone(tmp_path: Path) -> None:
    old = finished(tmp_path)
    context = begun(search(tmp_path, resume_from={"search": old.uri, "trials": "all"}))
    first = resumed(context)
    old.location.delete_dir()
    assert resumed(context) == first


def test_a_kill_between_the_pins_and_the_decision_repeats_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = finished(tmp_path)
    context = begun(search(tmp_path, resume_from={"search": old.uri, "trials": "best"}))
    with monkeypatch.context() as patched:
        patched.setattr("plugin_core.driver.tune.resumed.asdict", lambda taken: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            resumed(context)
    assert pinned(old.child("trial-t2"), "checkpoint_1")
    taken = resumed(context)
    assert taken is not None
    assert len(taken.given or []) == 1


@pytest.mark.parametrize(("trials", "numbers"), [("all", [1, 2]), ("best", [2])])
def test_trials_train_further_from_their_last_checkpoint_with_their_values(
    tmp_path: Path, trials: str, numbers: list[int]
) -> None:
    old = finished(tmp_path)
    taken = resumed(begun(search(tmp_path, resume_from={"search": old.uri, "trials": trials})))
    assert taken is not None
    legs = [old.child(f"trial-t{number}") for number in numbers]
    assert taken.given == [
        {
            "train_loop_config": {"step": number},
            RESUMED: {"run": leg.uri, "checkpoint": leg.location.child("checkpoint_1").uri, "value": float(number)},
        }
        for number, leg in zip(numbers, legs, strict=True)
    ]
    assert all(pinned(leg, "checkpoint_1") for leg in legs)


def test_a_trial_without_a_checkpoint_begins_anew_and_none_with_one_is_refused(tmp_path: Path) -> None:
    old = finished(tmp_path)
    old.child("trial-t2").location.child("checkpoint_1").delete_dir()
    again = {"search": old.uri, "trials": "all"}
    taken = resumed(begun(search(tmp_path, resume_from=again)))
    assert taken is not None
    assert taken.without_checkpoint == 1
    with pytest.raises(SpecError, match=r"resume_from\.trials: got 'best', but no trial has a checkpoint"):
        resumed(begun(search(tmp_path, "other", resume_from={**again, "trials": "best"})))


def test_a_chain_of_searches_keeps_the_trials_of_all(tmp_path: Path) -> None:
    old = finished(tmp_path)
    context = begun(search(tmp_path, "second", resume_from=old.uri))
    taken = resumed(context)
    grid = [grid_result("n1", {"train_loop_config": {"step": 9}}, {"value": 0.5, "leg": "trial-n1", "reports": 1})]
    context.rundir.write_result(collect(grid, context.spec, context, taken))  # type: ignore[arg-type]
    third = resumed(begun(search(tmp_path, "third", resume_from=context.rundir.uri)))
    assert third is not None
    assert [RunDir.at(each["run"]).uri for each in third.kept] == [
        old.child("trial-t1").uri,
        old.child("trial-t2").uri,
        context.rundir.child("trial-n1").uri,
    ]


# ---- the result


def test_a_kept_trial_may_be_the_best_and_its_checkpoint_stays_pinned(tmp_path: Path) -> None:
    old = finished(tmp_path)
    context = begun(search(tmp_path, resume_from=old.uri))
    taken = resumed(context)
    grid = [grid_result("n1", {"train_loop_config": {"step": 0.1}}, {"value": 0.5, "leg": "trial-n1", "reports": 1})]
    result = collect(grid, context.spec, context, taken)  # type: ignore[arg-type]
    assert result.trials == {"finished": 0, "stopped": 1, "failed": 0, "kept": 2}
    assert (result.metrics, result.best_config) == ({"value": 2.0}, {"train_loop_config": {"step": 2}})
    assert taken is not None
    release(taken, context, result.best)
    assert pinned(old.child("trial-t2"), "checkpoint_1")


def test_what_trained_further_is_released_and_what_had_nothing_left_is_as_it_was(tmp_path: Path) -> None:
    old = finished(tmp_path)
    context = begun(search(tmp_path, resume_from={"search": old.uri, "trials": "all"}))
    taken = resumed(context)
    assert taken is not None
    assert taken.given is not None
    one, two = taken.given
    further = {"value": 5.0, "leg": "trial-t1", "reports": 2}
    leg = context.rundir.child("trial-t1")
    leg.write_child_spec(search(tmp_path).train)
    leg.write_result(TrainResult(run=RunRef(uri=leg.uri, name=leg.name), metrics={"value": 5.0}, reports=2))
    leg = context.rundir.child("trial-t2")
    leg.write_result(TrainResult(run=RunRef(uri=leg.uri, name=leg.name)))
    idle = {"value": 2.0, "leg": "trial-t2", "reports": 0}
    result = collect([grid_result("a", one, further), grid_result("b", two, idle)], context.spec, context, taken)  # type: ignore[arg-type]
    assert result.trials == {"finished": 1, "stopped": 0, "failed": 0, "kept": 1}
    assert (result.metrics, result.best_config) == ({"value": 5.0}, {"train_loop_config": {"step": 1}})
    rows = json.loads(Path(result.table).read_text())
    assert [(each["run"], each.get("from")) for each in rows] == [
        ("trial-t1", old.child("trial-t1").uri),
        (old.child("trial-t2").uri, None),
    ]
    release(taken, context, result.best)
    assert not any(pinned(old.child(f"trial-t{number}"), "checkpoint_1") for number in (1, 2))
    with pytest.raises(SpecError, match=r"resume_from\.trials: no trial had anything left to train; expected"):
        collect([grid_result("b", two, idle)], context.spec, context, taken)  # type: ignore[arg-type]


def test_the_plan_of_an_older_or_torn_file_is_no_other_plan(tmp_path: Path) -> None:
    from plugin_core.errors import StorageError

    old = finished(tmp_path)
    context = begun(search(tmp_path, resume_from=old.uri))
    context.rundir.step.child(finished_search.PLAN).write(b'{"kept": [')
    with pytest.raises(StorageError, match=r"resumed\.json is damaged"):
        resumed(context)
