"""Checks that can fail, and values that are accepted unchanged or refused."""

import enum
import math
import typing
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from pydantic import Strict, TypeAdapter
from pydantic.fields import FieldInfo

from plugin_core import BatchInferSpec, EvaluateSpec, RetrainSpec, ScalingConfig, TrainSpec, TuneSpec, parse_spec
from plugin_core.errors import SpecError
from plugin_core.specs import runtime_env
from plugin_core.specs.base import Model
from plugin_core.specs.fields import MAX_PROCESSES
from plugin_core.specs.step import in_sum

LOOP = "devtools.steps:counting_loop"
TRAIN: dict[str, Any] = {"framework": "python", "train_loop_per_worker": LOOP}
EVALUATE: dict[str, Any] = {"kind": "evaluate", "evaluate": "a:b", "checkpoint": "/runs/a/checkpoint_1"}
JUDGED: dict[str, Any] = {
    "kind": "evaluate",
    "predictor": "a:b",
    "task": "classification",
    "dataset": "x.csv",
    "checkpoint": "/runs/a/checkpoint_1",
}
INFER: dict[str, Any] = {"kind": "batch_infer", "predictor": "a:b", "checkpoint": "/c", "dataset": "x.csv"}
TUNE: dict[str, Any] = {"kind": "tune", "train": TRAIN, "metric": "loss", "mode": "min"}


def cyclic() -> dict[str, Any]:
    found: dict[str, Any] = {}
    found["again"] = found
    return found


def deep(levels: int) -> Any:
    found: Any = 1
    for _ in range(levels):
        found = {"a": found}
    return found


def refused(data: dict[str, Any]) -> str:
    with pytest.raises(SpecError) as caught:
        parse_spec(data)
    message = caught.value.message
    assert "\n" not in message
    assert len(message) < 2000
    return message


# ---- gates


@pytest.mark.parametrize(
    ("threshold", "words"),
    [
        ({}, "thresholds.accuracy.min: missing; a threshold needs min or max"),
        ({"min": None, "max": None}, "thresholds.accuracy.min: missing"),
        ({"min": math.nan}, "thresholds.accuracy.min: got nan; expected a finite number"),
        ({"max": math.inf}, "thresholds.accuracy.max: got inf; expected a finite number"),
        ({"min": 0.9, "max": 0.1}, "thresholds.accuracy.min: got 0.9; expected at most max, 0.1"),
        ({"min": "0.9"}, "thresholds.accuracy.min: got '0.9'; expected a valid number"),
        ({"min": True}, "thresholds.accuracy.min: got True; expected a valid number"),
    ],
)
def test_a_threshold_that_is_never_broken_is_refused(threshold: Any, words: str) -> None:
    assert words in refused({**EVALUATE, "thresholds": {"accuracy": threshold}})


@pytest.mark.parametrize("tolerance", [math.inf, -math.inf, math.nan, "1", True])
def test_a_tolerance_that_forgives_everything_is_refused(tolerance: Any) -> None:
    comparison = {"must_beat": {"accuracy": {"tolerance": tolerance}}, "compare_to": "/runs/b/checkpoint_1"}
    assert "must_beat.accuracy.tolerance: got" in refused({**EVALUATE, **comparison})


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"thresholds": {"accuracy": {"min": 0}}}, "thresholds.accuracy.min: got 0; expected a value that accuracy"),
        ({"thresholds": {"accuracy": {"min": 95}}}, "which ranges from 0 to 1, can both pass and fail"),
        ({"score_column": "p", "thresholds": {"log_loss": {"max": -1}}}, "thresholds.log_loss.max: got -1; expected"),
        (
            {"must_beat": {"f1": {"tolerance": 1}}, "compare_to": "/c"},
            "must_beat.f1.tolerance: got 1; expected a value that f1, which ranges from 0 to 1",
        ),
    ],
)
def test_a_demand_on_a_built_in_metric_that_cannot_be_met_or_broken_is_refused(fields: dict[str, Any], words: str) -> None:
    assert words in refused({**JUDGED, **fields})


def test_metrics_of_a_users_function_may_have_any_range() -> None:
    EvaluateSpec(evaluate="a:b", checkpoint="/c", thresholds={"accuracy": {"min": 95}})


@pytest.mark.parametrize("gate", [{"accuracy": {}}, {"accuracy": {"min": math.nan}}, {}])
def test_a_retraining_needs_a_gate_that_can_fail(gate: Any) -> None:
    with pytest.raises(SpecError, match=r"evaluate\."):
        RetrainSpec(model="m", train=TRAIN, evaluate={"evaluate": "a:b", "thresholds": gate})


# ---- what a loop gets


class Colour(enum.Enum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (math.inf, "train_loop_config.lr: got inf, which JSON cannot represent; expected a finite number"),
        (math.nan, "train_loop_config.lr: got nan, which JSON cannot represent; expected a finite number"),
        ({0: 1}, "train_loop_config.lr: got the key 0 of type int; expected a string"),
        ([1, (2, 3)], "train_loop_config.lr.1: got (2, 3), a tuple, which JSON would turn into a list; expected a list"),
        (b"x", "train_loop_config.lr: got b'x' of type bytes; expected plain JSON data"),
        ({1, 2}, "of type set; expected plain JSON data"),
        (int, "of type type; expected plain JSON data"),
        (Colour.RED, "of type Colour; expected plain JSON data"),
        (np.float32(0.5), "of type float32; expected plain JSON data"),
        ("\ud800", "expected valid UTF-8 text"),
        (10**5000, "train_loop_config.lr: got an integer of 16,610 bits; expected at most 1,024"),
        (cyclic(), "nested deeper than 50 levels, or cyclic; expected plain JSON data"),
        (deep(5000), "nested deeper than 50 levels"),
        ([0] * 200_000, "got more than 100,000 values; expected fewer in a spec"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_a_loops_config_that_json_would_change_is_refused_with_its_path(value: Any, words: str) -> None:
    message = refused({**TRAIN, "train_loop_config": {"lr": value}})
    assert message.startswith("train_loop_config.lr")
    assert words in message


def test_a_loops_config_of_plain_data_reaches_the_loop_as_it_is() -> None:
    config = {"lr": 1e-3, "layers": [64, 32], "name": "é", "on": True, "off": None, "inner": {"": 0}, "big": 2**70}
    assert TrainSpec(**TRAIN, train_loop_config=config).to_json()["train_loop_config"] == config
    assert TrainSpec(**TRAIN, train_loop_config={"lr": np.float64(0.5)}).train_loop_config == {"lr": 0.5}


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (
            {**TRAIN, "datasets": {"train": {"function": "a:b", "kwargs": {"x": math.inf}}}},
            "datasets.train.kwargs.x: got inf",
        ),
        ({**EVALUATE, "config": {"x": (1,)}}, "config.x: got (1,)"),
        ({**INFER, "config": {1: 1}}, "config: got the key 1"),
        (
            {**TUNE, "param_space": {"train_loop_config": {"x": {"choice": [math.nan]}}}},
            "param_space.train_loop_config.x.choice",
        ),
        ({**TUNE, "param_space": cyclic()}, "param_space: nested deeper than 50 levels"),
        ({**TUNE, "param_space": {"seed": {"choice": [1]}}, "scheduler": {"type": "asha", "options": 5}}, "scheduler"),
    ],
)
def test_user_code_gets_only_plain_json(data: dict[str, Any], field: str) -> None:
    assert field in refused(data)


# ---- numbers and names


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a boolean as a number": ({**TRAIN, "limits": {"max_attempts": True}}, "limits.max_attempts: got True"),
    "a number as a boolean": ({**TRAIN, "scaling_config": {"use_gpu": 1}}, "scaling_config.use_gpu: got 1"),
    "text as a number": ({**TRAIN, "scaling_config": {"num_workers": "2"}}, "scaling_config.num_workers: got '2'"),
    "a huge number of workers": ({**TRAIN, "scaling_config": {"num_workers": 10**12}}, "whole number from 1 to 100,000"),
    "a number of 5,000 digits": ({**TRAIN, "limits": {"max_attempts": 10**5000}}, "limits.max_attempts: got <int>"),
    "workers as a boolean": ({**TRAIN, "scaling_config": {"num_workers": True}}, "scaling_config.num_workers: got True"),
    "three workers' numbers": ({**TRAIN, "scaling_config": {"num_workers": [1, 2, 3]}}, "got (1, 2, 3); expected"),
    "an endless time-out": ({**TRAIN, "limits": {"timeout_s": math.inf}}, "limits.timeout_s: got inf"),
    "no number of CPUs": (
        {**TRAIN, "scaling_config": {"resources_per_worker": {"CPU": math.nan}}},
        "resources_per_worker.CPU: got nan",
    ),
    "no actors": ({**INFER, "concurrency": 0}, "concurrency: got 0; expected a whole number"),
    "fewer than no actors": ({**INFER, "concurrency": -1}, "concurrency: got -1"),
    "a pool that shrinks": ({**INFER, "concurrency": [3, 1]}, "concurrency: got (3, 1); expected"),
    "a pool of a million million": ({**EVALUATE, "concurrency": 10**12}, "concurrency: got 1000000000000"),
    "a metric without a name": ({**TUNE, "param_space": {"seed": {"choice": [1]}}, "metric": ""}, "metric: got ''"),
    "a column without a name": ({**INFER, "key_column": " "}, "key_column: got ' '; expected a name"),
    "a column twice": ({**INFER, "partition_by": ["a", "a"]}, "partition_by: got 'a' 2 times; expected each name once"),
    "a set of columns": ({**INFER, "output_columns": {"a", "b"}}, "output_columns: got {'a', 'b'}; expected a list"),
    "a framework that is none": ({**EVALUATE, "framework": "nope"}, "framework: got 'nope'; expected torch"),
    "a framework with a slip": ({**INFER, "framework": "tourch"}, "did you mean torch?"),
    "a list as a metric's name": ({**EVALUATE, "must_beat": [["a"]], "compare_to": "/c"}, "must_beat: got ['a']"),
    "a list as kind": ({**TRAIN, "kind": ["train"]}, "kind: got ['train']; expected one of train, tune"),
    "a number as a field": ({**TRAIN, 5: 1}, "got the key 5; expected a field name"),
    "a number as an inner field": ({**TRAIN, "limits": {5: 1}}, "limits: got the key 5; expected a field name"),
    "no path": ({**TRAIN, "datasets": {"a": {"path": []}}}, "datasets.a.path: got []"),
    "NUL in a path": ({**TRAIN, "datasets": {"a": "/a\0b.csv"}}, "contains control characters"),
    "half a character in a path": ({**TRAIN, "datasets": {"a": "/\ud800.csv"}}, "contains control characters"),
    "a path without an end": ({**TRAIN, "datasets": {"a": "/a" * 3000 + ".csv"}}, "of 6,004 bytes; expected at most 2,048"),
    "a bucket with one slash": (
        {**TRAIN, "run_config": {"storage_path": "s3:/bucket"}},
        "expected a local path, or a URI with '://'",
    ),
    "half an address as storage": ({**TRAIN, "run_config": {"storage_path": "s3://[x"}}, "run_config.storage_path: got"),
    "a batch inference without its output": ({**TRAIN, "datasets": {"a": {"kind": "batch_infer"}}}, "datasets.a.path"),
    "a search without its best": (
        {**EVALUATE, "checkpoint": {"kind": "tune"}},
        "checkpoint: got {'kind': 'tune'}; the tune",
    ),
    "a seed below 0": ({**TRAIN, "datasets": {"a": {"path": "x.csv", "shuffle_seed": -1}}}, "shuffle_seed: got -1"),
    "deep resources": ({**TRAIN, "scaling_config": deep(3000)}, "scaling_config"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_value_is_accepted_unchanged_or_refused(case: str) -> None:
    data, words = WRONG[case]
    assert words in refused(data)


@pytest.mark.parametrize(
    ("sampler", "words"),
    [
        ({"uniform": [0, math.inf]}, "uniform.1: got inf, which JSON cannot represent; expected a finite number"),
        ({"quniform": [0, 1, 0]}, "expected q above 0"),
        ({"quniform": [0, 1, 0.3]}, "expected bounds that are multiples of q"),
        ({"randn": [0, -1]}, "expected a standard deviation above 0"),
        ({"randint": [0.5, 3]}, "expected whole numbers"),
        ({"randint": [0, True]}, "all numbers"),
    ],
)
def test_a_sampler_that_ray_tune_does_not_support_is_refused(sampler: Any, words: str) -> None:
    assert words in refused({**TUNE, "param_space": {"train_loop_config": {"x": sampler}}})


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({"seed": {"choice": [-5, -1]}}, "param_space.seed: a trial may get an invalid TrainSpec: seed: got -5"),
        ({"seed": {"randint": [-5, -1]}}, "seed: got -5"),
        ({"num_boost_round": {"uniform": [1, 5]}}, "num_boost_round: got 1.0"),
        ({"scaling_config": {"num_workers": {"choice": [1, 0]}}}, "scaling_config.num_workers: got 0"),
    ],
)
def test_a_space_with_a_value_that_no_trial_can_take_is_refused(space: Any, words: str) -> None:
    assert words in refused({**TUNE, "param_space": space})


# ---- runtime_env


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"env_vars": "x"}, "runtime_env.env_vars: got a value of type str; expected a mapping of names to strings"),
        ({"env_vars": 5}, "runtime_env.env_vars: got a value of type int"),
        ({"env_vars": {"A": 1}}, "runtime_env.env_vars.A: got a value of type int; expected text (in YAML, in quotes)"),
        ({"env_vars": {"A=B": "x"}}, "runtime_env.env_vars: got the name 'A=B'; expected letters, digits"),
        ({"env_vars": {"A": "x\0"}}, "runtime_env.env_vars.A: got text with NUL"),
        ({"env_vars": {"A": "x" * 200_000}}, "runtime_env.env_vars.A: got 200,003 bytes; expected at most 131,072"),
        ({"working_dir": 5}, "runtime_env.working_dir: got a value of type int; expected text"),
        ({"pip": 5}, "runtime_env.pip: got a value of type int; expected a list of requirements"),
        ({"pip": {"package": []}}, "runtime_env.pip.package: unknown field; expected one of packages"),
        ({"py_modules": "x"}, "runtime_env.py_modules: got a value of type str; expected a list of strings"),
        ({"workingdir": "x"}, "did you mean working_dir?"),
        ("pip", "runtime_env: got a value of type str; expected a mapping"),
    ],
)
def test_a_runtime_env_that_ray_would_refuse_is_refused_before_the_submit(given: Any, words: str) -> None:
    assert words in refused({**TRAIN, "runtime_env": given})
    assert words.replace("runtime_env", "worker_runtime_env", 1) in refused(
        {**TRAIN, "run_config": {"worker_runtime_env": given}}
    )


def test_a_refused_runtime_env_shows_no_value() -> None:
    for name, value in (("A", ["s3cret"]), ("A B", "s3cret"), ("A", "s3cret\0")):
        assert "s3cret" not in refused({**TRAIN, "runtime_env": {"env_vars": {name: value}, "pip": ["s3cret"]}})


def test_a_runtime_env_takes_rays_fields_and_those_of_plugins() -> None:
    from ray.runtime_env import RuntimeEnv

    assert RuntimeEnv.known_fields <= set(runtime_env.FIELDS)
    given = {"pip": ["a"], "uv": {"packages": ["a"]}, "config": {"setup_timeout_seconds": -1}, "my_plugin": {"a": [1]}}
    assert TrainSpec(**TRAIN, runtime_env=given).runtime_env == given


# ---- however a spec is made


def test_a_spec_is_checked_however_it_is_made() -> None:
    spec = TrainSpec(**TRAIN)
    for make in (
        lambda: spec.model_copy(update={"seed": -1}),
        lambda: TrainSpec.model_validate({**TRAIN, "seed": -1}),
        lambda: TrainSpec.model_validate_json('{"framework": "python", "train_loop_per_worker": "a:b", "seed": -1}'),
        lambda: spec.with_name("../outside"),
    ):
        with pytest.raises(SpecError, match=r"seed: got -1|name: got '../outside'"):
            make()


def _models(cls: type[Model]) -> Iterator[type[Model]]:
    for sub in cls.__subclasses__():
        yield sub
        yield from _models(sub)


def _scalars(annotation: Any, metadata: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        inner, *more = typing.get_args(annotation)
        yield from _scalars(inner, (*metadata, *more))
    elif annotation in (int, float, str, bool):
        yield annotation, metadata
    elif origin is not typing.Literal:
        for part in typing.get_args(annotation):
            yield from _scalars(part, metadata)


def _is_checked(info: FieldInfo, annotation: Any, metadata: tuple[Any, ...]) -> bool:
    whole = (*metadata, *info.metadata)
    return any(isinstance(part, Strict) and part.strict for part in whole) or any(hasattr(part, "func") for part in whole)


def test_no_field_of_a_spec_takes_a_number_or_text_that_is_converted() -> None:
    lax = [
        f"{model.__name__}.{name}"
        for model in _models(Model)
        if model.__module__.startswith("plugin_core.")
        for name, info in model.model_fields.items()
        for annotation, metadata in _scalars(info.annotation)
        if not _is_checked(info, annotation, metadata)
    ]
    assert lax == []


def test_the_resources_of_many_workers_are_computed_from_their_number() -> None:
    spec = TrainSpec(**TRAIN, scaling_config=ScalingConfig(num_workers=MAX_PROCESSES))
    assert spec.bundles() == [(MAX_PROCESSES, {"CPU": 1.0})]
    assert in_sum(BatchInferSpec(**{**INFER, "concurrency": (2, 5)}).bundles()) == {"CPU": 3.0, "GPU": 0.0}


def test_a_tune_spec_is_plain_json_however_deep() -> None:
    assert TypeAdapter(dict).validate_python(TuneSpec(**TUNE, param_space={"seed": {"choice": [1]}}).to_json())
