"""Ray's own examples: every file has its case, and what is refused is so before anything is submitted, in one sentence.

What runs is in the integration tests.
"""

import importlib.util
from types import SimpleNamespace
from typing import Any, cast

import pytest
from ray import tune
from ray.train.torch import TorchTrainer

from plugin_core import TrainSpec, TuneSpec
from plugin_core.driver.train.step import _train_loop
from plugin_core.errors import PayloadError, SpecError
from plugin_core.runs.context import StepContext
from plugin_core.specs.functions import check_reference, import_function
from plugin_core.supervisor.preflight import check_functions_and_data
from tests.support.ray_examples import EXAMPLES, FOLDERS, RAY, Fails, Needs, Refused, RefusedSpec, Searches, Trains, cases

FIELD = "train_loop_per_worker"
RUNNING = cases(Trains, Searches, Fails)
REFUSED = cases(Refused)
REFUSED_SPECS = cases(RefusedSpec)
NEEDING = cases(Needs)


def test_every_file_of_rays_examples_has_its_case() -> None:
    """A new version of Ray may have a new example."""
    files = {str(file.relative_to(RAY)) for folder in FOLDERS for file in (RAY / folder).rglob("*.py")}
    assert {file for file in files if not file.endswith("__init__.py")} == set(EXAMPLES)


@pytest.mark.parametrize("name", RUNNING)
def test_each_function_that_runs_is_there(name: str) -> None:
    module, case = RUNNING[name]
    check_reference(FIELD, f"{module}:{case.function}", must_exist=True, may_be_class=False)


def give(reference: str) -> None:
    """Give it to a training by its name, then as an object."""
    check_functions_and_data(TrainSpec(train_loop_per_worker=reference), here=True)
    TrainSpec(train_loop_per_worker=import_function(FIELD, reference))


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_loop_is_refused_before_the_submit(name: str) -> None:
    module, case = REFUSED[name]
    reference = f"{case.module or module}:{case.name}"
    with pytest.raises(SpecError) as caught:
        give(reference)
    assert caught.value.message.startswith(f"{FIELD}: got ")
    assert case.words in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("name", REFUSED_SPECS)
def test_what_no_search_can_have_is_refused_before_the_submit(name: str) -> None:
    module, case = REFUSED_SPECS[name]
    space = {"train_loop_config": {"width": {"uniform": [0, 1]}}}
    train = {FIELD: f"{module}:easy_objective"}
    fields = {"train": train, "param_space": space, "metric": "mean_loss", "mode": "min", **case.fields}
    with pytest.raises(SpecError) as caught:
        check_functions_and_data(TuneSpec(**fields), here=True)
    assert case.words in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.slow  # it imports PyTorch, Lightning and RLlib
@pytest.mark.parametrize("name", NEEDING)
def test_a_package_that_an_example_lacks_is_named(name: str) -> None:
    module, case = NEEDING[name]
    if importlib.util.find_spec(case.package) is not None:
        pytest.skip(f"{case.package} is installed")
    with pytest.raises(PayloadError, match=rf"(?i)which cannot be imported \(.*{case.package}"):
        import_function(FIELD, f"{module}:train_func")


# ---- forms of a trainable that the examples' functions take in their scripts


def loop(config: dict[str, Any]) -> None:
    tune.report({"loss": 0.5})


def with_resources(config: dict[str, Any]) -> None:
    tune.report({"loss": 0.5})


async def later(config: dict[str, Any]) -> None:
    tune.report({"loss": 0.5})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (tune.Tuner(loop), "got a Tuner; expected the function that it trains with"),
        (TorchTrainer(loop), "got a TorchTrainer; expected the function that it trains with"),
        (
            tune.with_resources(with_resources, {"cpu": 2}),
            "got with_resources with ray.tune.with_resources; expected with_resources itself, and the resources in"
            " scaling_config.resources_per_worker",
        ),
        (
            tune.with_parameters(loop, data=[1]),
            "got loop with ray.tune.with_parameters, whose values stay in this process; expected loop itself, and the"
            " values in train_loop_config",
        ),
        (later, "got a generator or coroutine, which runs nothing when it is called; expected a function that calls"),
        (StepContext, "got the class StepContext; expected a function that calls ray.train.report(metrics)"),
    ],
    ids=["Tuner", "TorchTrainer", "with_resources", "with_parameters", "coroutine", "class"],
)
def test_a_trainable_of_another_form_is_refused_with_what_to_give_instead(given: Any, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        TrainSpec(train_loop_per_worker=given)
    assert caught.value.message.startswith(f"{FIELD}: {words}")


def test_a_reference_to_what_is_no_loop_is_refused_where_it_is_imported() -> None:
    """Its module says only then what it is."""
    reference = "ray.tune.examples.pb2_example:PB2"
    check_reference(FIELD, reference, must_exist=True, may_be_class=False)
    context = SimpleNamespace(function=lambda field: import_function(field, reference))
    with pytest.raises(SpecError, match="train_loop_per_worker: got the class PB2; expected a function"):
        _train_loop(cast(StepContext, context))
