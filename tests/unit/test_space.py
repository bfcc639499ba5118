"""The search space as data, and TuneSpec."""

from typing import Any

import pytest
from ray import tune

from plugin_core import ScalingConfig, TrainSpec, TuneSpec, parse_spec
from plugin_core.errors import SpecError
from plugin_core.specs import search_space

TRAIN = {"framework": "python", "train_loop_per_worker": "a:b", "train_loop_config": {"lr": 0.1, "epochs": 5}}
LR = {"train_loop_config": {"lr": {"loguniform": [1e-4, 1e-1]}}}


def spec(**fields: Any) -> TuneSpec:
    return TuneSpec(**{"train": TRAIN, "param_space": LR, "metric": "loss", "mode": "min", **fields})


@pytest.mark.parametrize(
    ("rays", "data"),
    [
        (tune.uniform(0, 1), {"uniform": [0, 1]}),
        (tune.quniform(0, 1, 0.1), {"quniform": [0, 1, 0.1]}),
        (tune.loguniform(1e-4, 1), {"loguniform": [1e-4, 1]}),
        (tune.qloguniform(1e-4, 1, 1e-4), {"qloguniform": [1e-4, 1, 1e-4]}),
        (tune.randn(1, 2), {"randn": [1, 2]}),
        (tune.qrandn(1, 2, 0.5), {"qrandn": [1, 2, 0.5]}),
        (tune.randint(1, 9), {"randint": [1, 9]}),
        (tune.qrandint(2, 8, 2), {"qrandint": [2, 8, 2]}),
        (tune.lograndint(1, 9), {"lograndint": [1, 9]}),
        (tune.choice(["a", "b"]), {"choice": ["a", "b"]}),
        (tune.grid_search([1, 2]), {"grid_search": [1, 2]}),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_ray_objects_become_data_and_data_becomes_ray_objects(rays: Any, data: Any) -> None:
    assert search_space.as_data(rays) == data
    back = search_space.to_ray(data)
    assert type(back) is type(rays)
    assert search_space.as_data(back) == data


def test_a_spec_with_rays_objects_is_the_same_as_one_with_data_and_survives_json() -> None:
    given = spec(param_space={"train_loop_config": {"lr": tune.loguniform(1e-4, 1e-1)}}, scheduler="asha")
    assert given == spec(scheduler={"type": "asha"})
    assert parse_spec(given.to_json()).to_json() == given.to_json()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "param_space: got {}; expected at least one entry"),
        ({"lr": {"uniform": [0, 1]}}, "param_space: got 'lr'; expected the fields train_loop_config, params"),
        ({"train_loop_confg": {}}, "(did you mean train_loop_config?)"),
        ({"train_loop_config": {"lr": 0.1}}, "which varies nothing; expected uniform, quniform, loguniform"),
        (
            {"train_loop_config": {"lr": {"loguniforn": [1e-4, 1]}}},
            "param_space.train_loop_config.lr: got {'loguniforn': [0.0001, 1]}; expected",
        ),
        ({"train_loop_config": {"lr": {"loguniforn": [1e-4, 1]}}}, "(did you mean loguniform?)"),
        ({"train_loop_config": {"lr": {"uniform": [1, 0]}}}, "lr.uniform: got [1, 0]; expected lower < upper"),
        ({"train_loop_config": {"lr": {"uniform": [0]}}}, "lr.uniform: got [0]; expected [lower, upper], all numbers"),
        (
            {"train_loop_config": {"lr": {"loguniform": [0, 1]}}},
            "lr.loguniform: got [0, 1]; expected a lower bound above 0",
        ),
        ({"train_loop_config": {"lr": {"choice": []}}}, "lr.choice: got []; expected a list of values"),
        ({"train_loop_config": {"lr": tune.sample_from(lambda: 1)}}, "expected uniform, quniform"),
    ],
)
def test_a_space_that_cannot_be_searched_is_refused_with_the_close_name(given: Any, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec(param_space=given)
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"scheduler": "ashaa"}, "scheduler.type: got 'ashaa'; expected 'fifo', 'asha'"),
        ({"scheduler": "pbt"}, "scheduler.hyperparam_mutations: missing; 'pbt' needs it"),
        ({"search_alg": "optunaa"}, "search_alg.type: got 'optunaa'"),
        ({"mode": "maximum"}, "mode: got 'maximum'; expected 'max' or 'min'"),
        ({"num_samples": 0}, "num_samples: got 0"),
        (
            {"search_alg": "optuna", "param_space": {"train_loop_config": {"lr": {"grid_search": [1, 2]}}}},
            "param_space: got a grid_search with search_alg 'optuna'; expected search_alg 'random'",
        ),
    ],
)
def test_an_impossible_search_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec(**fields)
    assert words in caught.value.message


def population(mutations: Any, kind: str = "pbt") -> TuneSpec:
    return spec(scheduler={"type": kind, "hyperparam_mutations" if kind == "pbt" else "hyperparam_bounds": mutations})


@pytest.mark.parametrize(
    ("kind", "mutations", "words"),
    [
        (
            "pbt",
            {"lr": tune.uniform(0, 1)},
            "scheduler.hyperparam_mutations: got 'lr'; expected fields of train, as in param_space:"
            ' {"train_loop_config": {"lr": …}}',
        ),
        ("pbt", {"train_loop_confg": {"lr": [1, 2]}}, "(did you mean train_loop_config?)"),
        ("pbt", {"train_loop_config": {"lr": 0.1}}, "mutations.train_loop_config.lr: got 0.1; expected a list of values"),
        ("pbt", {"train_loop_config": {"lr": {"unifrm": [0, 1]}}}, "(did you mean uniform?)"),
        ("pbt", {"train_loop_config": {"lr": {"uniform": [1, 0]}}}, "lr.uniform: got [1, 0]; expected lower < upper"),
        ("pbt", {"train_loop_config": {"lr": {"grid_search": [1, 2]}}}, "got a grid_search; expected a sampler"),
        ("pbt", {"train_loop_config": {"lr": lambda: 1}}, "of type function; expected plain JSON data"),
        (
            "pbt",
            {"scaling_config": {"num_workers": [0, 2]}},
            "scheduler.hyperparam_mutations.scaling_config.num_workers: a trial may get an invalid TrainSpec:",
        ),
        ("pb2", {"lr": [0, 1]}, "scheduler.hyperparam_bounds: got 'lr'; expected fields of train"),
        ("pb2", {"train_loop_config": {"lr": {"uniform": [1]}}}, "expected [lower, upper], two numbers"),
        ("pb2", {"train_loop_config": {"lr": [1, 0]}}, "lr: got [1, 0]; expected [lower, upper], two numbers"),
    ],
)
def test_mutations_that_no_trial_can_take_are_refused_when_the_spec_is_made(kind: str, mutations: Any, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        population(mutations, kind)
    assert words in caught.value.message


def test_mutations_are_spaces_or_as_in_ray_lists() -> None:
    from plugin_core.driver.tune.algorithms import make_scheduler

    for mutations in ({"lr": tune.uniform(0, 1)}, {"lr": [0.1, 0.2]}, {"inner": {"lr": {"choice": [1, 2]}}}):
        assert make_scheduler(population({"train_loop_config": mutations}).scheduler) is not None
    population({"train_loop_config": {"lr": [0.001, 0.1]}}, "pb2")


def test_a_trial_is_the_training_with_values_from_the_space() -> None:
    trial = spec().trial_spec({"train_loop_config": {"lr": 0.01}, "scaling_config": {"num_workers": 2}})
    assert trial == TrainSpec(
        **{**TRAIN, "train_loop_config": {"lr": 0.01, "epochs": 5}, "scaling_config": ScalingConfig(num_workers=2)}
    )


def test_grids_multiply_the_samples() -> None:
    grid = {"lr": {"grid_search": [1, 2, 3]}, "inner": {"size": {"grid_search": [1, 2]}, "x": {"uniform": [0, 1]}}}
    assert spec(param_space={"train_loop_config": grid}, num_samples=4).trials == 24


def test_an_option_unknown_to_a_scheduler_or_searcher_is_named() -> None:
    from plugin_core.driver.tune.algorithms import make_scheduler, make_searcher

    with pytest.raises(SpecError, match=r"scheduler\.graceperiod: not an option of 'asha'; .*did you mean grace_period\?"):
        make_scheduler(spec(scheduler={"type": "asha", "graceperiod": 1}).scheduler)
    with pytest.raises(SpecError, match=r"search_alg\.sede: not an option of 'optuna'; .*did you mean seed\?"):
        make_searcher(spec(search_alg={"type": "optuna", "sede": 1}).search_alg)
    with pytest.raises(SpecError, match="search_alg: got 'hyperopt', whose package is not installed on the cluster"):
        make_searcher(spec(search_alg="hyperopt").search_alg)


def test_a_scheduler_counts_reports_unless_told_otherwise() -> None:
    from plugin_core.driver.tune.algorithms import make_scheduler

    mutations = {"train_loop_config": {"lr": {"uniform": [0, 1]}}}
    made = make_scheduler(spec(scheduler={"type": "pbt", "hyperparam_mutations": mutations}).scheduler)
    assert made._time_attr == "training_iteration"
    assert make_scheduler(spec(scheduler={"type": "asha", "time_attr": "epoch"}).scheduler)._time_attr == "epoch"
    assert make_scheduler(None) is None
