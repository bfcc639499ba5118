"""Which trials a search runs that goes on from a finished one, and what its searcher knows. Without Ray."""

import json
from pathlib import Path
from typing import Any

import pytest
from ray import tune
from ray.tune.experiment import Experiment
from ray.tune.search import ConcurrencyLimiter, Searcher, SearchGenerator
from ray.tune.search.variant_generator import _has_unresolved_values

from plugin_core import TrainSpec, TuneSpec
from plugin_core.driver.tune.resumed import resumed
from plugin_core.driver.tune.sampling import trials_for_tuner
from plugin_core.errors import SpecError
from plugin_core.specs.functions import by_value_name
from plugin_core.supervisor import kind_checks
from tests.support.finished_search import GRID, begun, finished, row, search

# ---- functions and grids


def loop(config: Any) -> None: ...


def other(config: Any) -> None: ...


def with_loops(tmp_path: Path, name: str, *loops: Any, **fields: Any) -> TuneSpec:
    train = TrainSpec(framework="python", train_loop_per_worker=loops[0])
    return search(tmp_path, name, train=train, param_space={"train_loop_per_worker": {"choice": [*loops]}}, **fields)


def test_a_trials_function_is_found_by_its_name_though_its_code_has_changed(tmp_path: Path) -> None:
    before = by_value_name(loop).partition("#")[0] + "#0000"
    old = finished(tmp_path)
    changed = {**row(1, 1.0), "config": {"train_loop_per_worker": before}}
    old.location.child("trials.json").write(json.dumps([changed]).encode())
    spec = with_loops(tmp_path, "new", loop, other, resume_from={"search": old.uri, "trials": "all"})
    kind_checks.tune(spec, here=True)
    taken = resumed(begun(spec))
    assert taken is not None
    assert taken.given is not None
    assert taken.given[0]["train_loop_per_worker"] == by_value_name(loop)
    without = with_loops(tmp_path, "without", other, resume_from={"search": old.uri, "trials": "all"})
    with pytest.raises(
        SpecError, match="trial-t1 has the train_loop_per_worker 'loop', which neither train nor param_space"
    ):
        kind_checks.tune(without, here=True)


def test_a_trial_that_the_training_makes_invalid_is_named(tmp_path: Path) -> None:
    old = finished(tmp_path)
    old.location.child("trials.json").write(json.dumps([{**row(1, 1.0), "config": {"seed": -1}}]).encode())
    with pytest.raises(SpecError, match=r"trial-t1 would be an invalid TrainSpec now: seed: got -1"):
        kind_checks.tune(search(tmp_path, resume_from={"search": old.uri, "trials": "all"}), here=True)


def test_of_a_grid_only_what_the_finished_search_lacks_is_run(tmp_path: Path) -> None:
    old = finished(tmp_path)
    taken = resumed(begun(search(tmp_path, param_space=GRID, resume_from=old.uri, num_samples=2)))
    assert taken is not None
    assert taken.given is not None
    assert [config["train_loop_config"]["step"] for config in taken.given] == [1, 2, 3, 3]
    smaller = {"train_loop_config": {"step": {"grid_search": [1, 2]}}}
    with pytest.raises(SpecError, match=r"param_space: got a grid that .*old has searched; expected more values, or more"):
        kind_checks.tune(search(tmp_path, "less", param_space=smaller, resume_from=old.uri), here=True)


# ---- the searcher


def test_optuna_is_told_of_the_trials_that_are_in_its_space(tmp_path: Path) -> None:
    old = finished(tmp_path, [row(1, 1.0), row(2, 2.0), row(77, 7.0)])
    spec = search(tmp_path, resume_from=old.uri, search_alg={"type": "optuna", "seed": 5}, num_samples=3)
    taken = resumed(begun(spec))
    space, arguments = trials_for_tuner(spec, 2, taken)
    told = arguments["search_alg"]._ot_study.trials
    assert [(trial.params, trial.value) for trial in told] == [
        ({"train_loop_config/step": 1}, 1.0),
        ({"train_loop_config/step": 2}, 2.0),
    ]
    assert (space, arguments["num_samples"]) == ({"train_loop_config": {}}, 3)
    assert arguments["search_alg"]._seed == 5 + 3
    suggested = arguments["search_alg"].suggest("t")["train_loop_config"]["step"]
    assert 0 <= suggested <= 10


def test_a_seeded_random_search_does_not_draw_the_same_trials_again(tmp_path: Path) -> None:
    old = finished(tmp_path)
    random = {"type": "random", "random_state": 1}
    spec = search(tmp_path, resume_from=old.uri, search_alg=random)
    _, added = trials_for_tuner(spec, 2, resumed(begun(spec)))
    _, first = trials_for_tuner(search(tmp_path, search_alg=random), 2, None)
    drawn = [arguments["search_alg"]._random_state.uniform(0, 1) for arguments in (first, added)]
    assert drawn[0] != drawn[1]
    assert (added["search_alg"].max_concurrent, added["max_concurrent_trials"]) == (2, None)


class Nothing(tune.Trainable):
    pass


def trials_of(spec: TuneSpec, tmp_path: Path, taken: Any) -> list[dict[str, Any]]:
    """The configs of the trials that Ray Tune makes of it, as its controller does before it starts them."""
    space, arguments = trials_for_tuner(spec, 5, taken)
    algorithm = arguments["search_alg"]
    if isinstance(algorithm, Searcher):
        algorithm = SearchGenerator(ConcurrencyLimiter(algorithm, arguments["max_concurrent_trials"]))
    taken_over = space and not algorithm.set_search_properties(spec.metric, spec.mode, space)
    assert not (taken_over and _has_unresolved_values(space)), "Ray refuses this"
    samples = arguments["num_samples"]
    experiment = Experiment("search", run=Nothing, config=space, storage_path=str(tmp_path), num_samples=samples)
    algorithm.add_configurations(experiment)
    return [algorithm.next_trial().config for _ in range(samples)]


def test_ray_tune_makes_whole_trials_of_what_a_told_searcher_suggests(tmp_path: Path) -> None:
    old = finished(tmp_path)
    space = {"train_loop_config": {"step": {"uniform": [0, 10]}, "epochs": 4}, "seed": {"choice": [1, 2]}}
    spec = search(tmp_path, param_space=space, resume_from=old.uri, search_alg="optuna", num_samples=3)
    for config in trials_of(spec, tmp_path, resumed(begun(spec))):
        assert 0 <= config["train_loop_config"].pop("step") <= 10
        assert config.pop("seed") in (1, 2)
        assert config == {"train_loop_config": {"epochs": 4}}


def test_ray_tune_runs_the_given_trials_and_no_others(tmp_path: Path) -> None:
    old = finished(tmp_path)
    spec = search(tmp_path, resume_from={"search": old.uri, "trials": "all"})
    taken = resumed(begun(spec))
    assert taken is not None
    assert trials_of(spec, tmp_path, taken) == taken.given
