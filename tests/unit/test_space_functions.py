"""Functions and other fields of a training that a search varies."""

from pathlib import Path
from typing import Any

import pytest

from plugin_core import RunConfig, TrainSpec, TuneResult, TuneSpec, best_train_spec, parse_spec
from plugin_core.errors import SpecError
from plugin_core.runs.context import StepContext
from plugin_core.runs.directory import RunDir
from plugin_core.runs.spec_record import code_alone, fields_fingerprint, make_record
from plugin_core.specs import space_checks, space_functions
from plugin_core.specs.common import DatasetConfig
from plugin_core.specs.functions import by_value_name
from plugin_core.specs.parts import _function_fields, spec_datasets, spec_functions
from plugin_core.specs.results import RunRef, TrainResult
from plugin_core.specs.validation import ValidationConfig
from plugin_core.supervisor.preflight import check_functions_and_data


def loop(config: Any) -> None: ...


def other_loop(config: Any) -> int:
    return 2


def scaled() -> str:
    return "scaled"


def rows() -> str:
    return "rows"


TRAIN = {"framework": "python", "train_loop_per_worker": loop, "datasets": {"train": {"path": "/x.csv"}}}


def search(space: Any, tmp_path: Path = Path("/tmp"), train: Any = None, **fields: Any) -> TuneSpec:
    return TuneSpec(
        train=TrainSpec(**{**TRAIN, **(train or {})}),
        param_space=space,
        metric="loss",
        mode="min",
        run_config=RunConfig(name="search", storage_path=str(tmp_path)),
        **fields,
    )


def as_on_the_cluster(spec: TuneSpec) -> StepContext:
    """The context of a driver, in another process: the spec as data, the functions from the payload."""
    rundir = RunDir.of(spec)
    rundir.write_spec(spec)
    return StepContext(rundir.read_spec(), rundir, 1, rundir.read_payload(), lambda phase: None)


def trial(context: StepContext, chosen: dict[str, Any], name: str = "t") -> StepContext:
    spec = context.spec
    assert isinstance(spec, TuneSpec)
    return context.child(name, spec.trial_spec(chosen), "train")


def test_every_field_of_a_training_varies_or_says_why_it_does_not() -> None:
    fixed = {name for name in space_checks.FIXED if "." not in name}
    assert {*space_checks.FIELDS, *fixed} == set(TrainSpec.model_fields)


def test_every_function_of_a_training_is_known_to_a_space() -> None:
    found = set(_function_fields(TrainSpec))
    assert found <= {*space_functions.FIELDS}
    inner = {name for model in (DatasetConfig, RunConfig, ValidationConfig) for name in _function_fields(model)}
    assert found | inner | {"validation"} == space_functions.NAMES


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({"limits": {"timeout_s": {"choice": [1.0]}}}, "param_space: got 'limits', which cannot vary, since the search's"),
        ({"tracking": {"choice": [["mlflow"]]}}, "param_space: got 'tracking', which cannot vary, since the search's"),
        ({"runtime_env": {"choice": [{}]}}, "got 'runtime_env', which cannot vary, since all trials run in one job"),
        ({"kind": {"choice": ["train"]}}, "param_space: got 'kind', which cannot vary"),
        ({"run_config": {"name": {"choice": ["a"]}}}, "got 'run_config.name', which cannot vary, since each trial has a"),
        ({"run_config": {"choice": [{"storage_path": "/x"}]}}, "got 'run_config.storage_path', which cannot vary"),
        ({"run_config": {"choice": 5}}, "param_space.run_config.choice: got 5; expected a list of values"),
        ({"preprocessor": {"choice": [scaled, 5]}}, "param_space.preprocessor: a trial may get an invalid TrainSpec"),
        ({"preprocessor": {"choice": [scaled, "no reference"]}}, "preprocessor: got 'no reference'; expected a callable"),
        ({"seed": {"choice": [scaled]}}, "param_space.seed: a trial may get an invalid TrainSpec: seed: got <function"),
        ({"train_loop_config": {"f": {"choice": [scaled]}}}, "of type function; expected plain JSON data"),
        ({"datasets": {"train": {"kwargs": {"f": {"choice": [scaled]}}}}}, "of type function; expected plain JSON data"),
        ({"train_loop_per_worker": {"choice": [RunDir]}}, "got the class RunDir; expected a function"),
        ({"framework": {"choice": ["python", "pythn"]}}, "param_space.framework: a trial may get an invalid TrainSpec"),
        ({"resume_from": {"choice": ["ftp://x"]}}, "param_space.resume_from: a trial may get an invalid TrainSpec"),
        ({"label_column": {"choice": ["y", ""]}}, "param_space.label_column: a trial may get an invalid TrainSpec"),
    ],
)
def test_what_no_trial_can_take_is_refused_in_one_sentence(space: Any, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        search(space)
    assert words in caught.value.message
    assert "\n" not in caught.value.message


def test_a_population_cannot_mutate_what_its_trials_share() -> None:
    space = {"train_loop_config": {"lr": {"uniform": [0, 1]}}}
    with pytest.raises(SpecError, match=r"scheduler\.hyperparam_mutations: got 'run_config\.name', which cannot vary"):
        search(space, scheduler={"type": "pbt", "hyperparam_mutations": {"run_config": {"name": ["a", "b"]}}})


def test_the_values_of_two_samplers_are_checked_together_and_the_wrong_one_is_named() -> None:
    """Each alone is fine with the training as given."""
    trees = {"framework": "xgboost", "params": {}, "label_column": "y"}
    trees["datasets"] = {"train": "/x.csv", "valid": "/y.csv"}  # type: ignore[assignment]
    space = {
        "datasets": {"choice": [{"train": {"path": "/x.csv"}}]},
        "early_stopping_rounds": {"choice": [3]},
    }
    with pytest.raises(SpecError, match=r"early_stopping_rounds: got 3 with only the dataset 'train'"):
        search(space, train={**trees, "train_loop_per_worker": None})
    with pytest.raises(SpecError, match=r"param_space\.seed: a trial may get an invalid TrainSpec: seed: got -1"):
        search({"framework": {"choice": ["python"]}, "seed": {"choice": [-1, 1]}})


def test_a_dataset_that_is_chosen_replaces_the_trainings() -> None:
    space = {"datasets": {"train": {"choice": ["/y.parquet", rows, {"function": "a:b"}, {"path": "/z.json"}]}}}
    spec = search(space)
    found = []
    for value in spec.param_space["datasets"]["train"]["choice"]:
        config = spec.trial_spec({"datasets": {"train": value}}).datasets["train"]
        found.append((config.path, config.function, config.format))
    assert found == [("/y.parquet", None, None), (None, rows, None), (None, "a:b", None), ("/z.json", None, None)]
    assert {config.path for config in spec_datasets(spec).values()} == {"/x.csv", "/y.parquet", "/z.json", None}


def test_a_nested_value_leaves_the_rest_of_its_field_as_it_is() -> None:
    spec = search({"run_config": {"checkpoint_config": {"num_to_keep": {"choice": [1, 2]}}}})
    made = spec.trial_spec({"run_config": {"checkpoint_config": {"num_to_keep": 2}}})
    assert made.run_config.checkpoint_config.num_to_keep == 2
    assert made.run_config.failure_config == spec.train.run_config.failure_config


def test_functions_travel_with_the_search_and_each_trial_gets_its_own(tmp_path: Path) -> None:
    space = {
        "preprocessor": {"choice": [scaled, lambda: "mine", None, "devtools.steps:evaluate"]},
        "train_loop_per_worker": {"grid_search": [loop, other_loop, "devtools.steps:counting_loop"]},
        "datasets": {"train": {"choice": [rows, "/y.csv"]}},
    }
    given = search(space, tmp_path, train={"preprocessor": scaled})
    assert len(spec_functions(given)[0]) == 2 + 2 + 2 + 1
    assert set(spec_functions(given)[1].values()) == {"devtools.steps:evaluate", "devtools.steps:counting_loop"}
    context = as_on_the_cluster(given)
    names = context.spec.param_space  # type: ignore[attr-defined]
    for number, value in enumerate(("scaled", "mine")):
        child = trial(context, {"preprocessor": names["preprocessor"]["choice"][number]}, f"p{number}")
        assert child.function("preprocessor")() == value
    second = names["train_loop_per_worker"]["grid_search"][1]
    assert trial(context, {"train_loop_per_worker": second}).function("train_loop_per_worker")({}) == 2
    reference = trial(context, {"train_loop_per_worker": "devtools.steps:counting_loop"}, "r")
    assert reference.function("train_loop_per_worker").__name__ == "counting_loop"
    chosen = names["datasets"]["train"]["choice"][0]
    assert trial(context, {"datasets": {"train": chosen}}, "d").function("datasets.train.function")() == "rows"


def test_lists_and_short_forms_of_functions_travel_too(tmp_path: Path) -> None:
    space = {
        "validation": {"choice": [loop, {"fn": other_loop, "fn_kwargs": {"fn": "x:y"}}]},
        "run_config": {"callbacks": {"choice": [[scaled], []]}},
        "data_config": {"choice": [rows, None]},
    }
    given = search(space, tmp_path)
    assert len(spec_functions(given)[0]) == 1 + 2 + 1 + 1
    assert spec_functions(given)[1] == {}
    context = as_on_the_cluster(given)
    names = context.spec.param_space  # type: ignore[attr-defined]
    chosen = {
        "validation": names["validation"]["choice"][1],
        "run_config": {"callbacks": names["run_config"]["callbacks"]["choice"][0]},
        "data_config": names["data_config"]["choice"][0],
    }
    child = trial(context, chosen)
    assert child.function("validation.fn")({}) == 2
    assert child.function("run_config.callbacks.0")() == "scaled"
    assert child.function("data_config")() == "rows"


def test_a_mutated_function_is_found_too(tmp_path: Path) -> None:
    space = {"train_loop_config": {"lr": {"uniform": [0, 1]}}}
    mutations = {"train_loop_per_worker": [loop, other_loop]}
    given = search(space, tmp_path, scheduler={"type": "pbt", "hyperparam_mutations": mutations})
    context = as_on_the_cluster(given)
    name = context.spec.scheduler.options["hyperparam_mutations"]["train_loop_per_worker"][1]  # type: ignore[attr-defined]
    assert name == by_value_name(other_loop)
    assert trial(context, {"train_loop_per_worker": name}).function("train_loop_per_worker")({}) == 2


def test_the_spec_as_data_is_the_same_in_every_process() -> None:
    given = search({"preprocessor": {"choice": [scaled, None]}})
    data = given.to_json()
    assert data["param_space"] == {"preprocessor": {"choice": [by_value_name(scaled), None]}}
    assert parse_spec(data).to_json() == data


def test_mended_code_of_a_function_in_the_space_is_a_change_of_code_alone() -> None:
    def mended(text: str) -> Any:
        def made() -> str:
            return text

        return made

    before, after = (make_record(search({"preprocessor": {"choice": [mended(text), None]}}))[0] for text in "ab")
    assert code_alone(before, after)
    assert fields_fingerprint(before) == fields_fingerprint(after)
    other = make_record(search({"preprocessor": {"choice": [scaled, None]}}))[0]
    assert not code_alone(before, other)
    assert fields_fingerprint(before) != fields_fingerprint(other)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (
            {"preprocessor": {"choice": ["devtools.steps:nope"]}},
            r"param_space\.preprocessor\.choice\.0: got 'devtools.steps:nope', which cannot be imported",
        ),
        (
            {"train_loop_per_worker": {"choice": ["devtools.chaos:Running"]}},
            r"param_space\.train_loop_per_worker\.choice\.0: got the class",
        ),
        (
            {"datasets": {"train": {"choice": ["/nowhere.csv"]}}},
            r"param_space\.datasets\.train\.0\.path: got '/nowhere.csv', which does not exist",
        ),
        ({"resume_from": {"choice": ["/nowhere"]}}, r"param_space\.resume_from: got '/nowhere', which does not exist"),
    ],
)
def test_what_is_missing_is_refused_before_the_submit(space: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        check_functions_and_data(search(space, train={"datasets": {"train": {"function": rows}}}), here=True)


def test_the_largest_trial_must_fit() -> None:
    spec = search({"scaling_config": {"num_workers": {"choice": [1, 4, 2]}}})
    assert spec.bundles()[0] == (4, {"CPU": 1.0})


def test_the_best_training_has_the_functions_that_were_searched(tmp_path: Path) -> None:
    given = search({"preprocessor": {"choice": [scaled, None]}}, tmp_path)
    RunDir.of(given).write_spec(given)
    run = RunRef(uri=RunDir.of(given).uri, name="search")
    result = TuneResult(
        run=run, best=TrainResult(run=run), best_config={"preprocessor": by_value_name(scaled)}, trials={}, table="/t"
    )
    assert best_train_spec(result, given).preprocessor is scaled
    for train, words in ((None, "train: missing"), (given.train, "train: got a TrainSpec")):
        with pytest.raises(SpecError, match=rf"{words}; expected the search's TuneSpec, .* preprocessor was sent by value"):
            best_train_spec(result, train)
