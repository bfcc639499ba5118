"""Checks of a search space and of a population's mutations, with one sentence for what is wrong."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from plugin_core.errors.shown import did_you_mean, shown
from plugin_core.specs.json_values import is_number
from plugin_core.specs.search_space import LISTS, SAMPLERS, extremes, lists_as_choices, sampler

#: Those that a mutation may draw from.
MUTATING = tuple(name for name in SAMPLERS if name != "grid_search")
#: The fields of a TrainSpec that a search may vary.
FIELDS = (
    "train_loop_config",
    "params",
    "num_boost_round",
    "early_stopping_rounds",
    "deepspeed_config",
    "seed",
    "scaling_config",
    "datasets",
    "preprocessor",
    "data_config",
    "train_loop_per_worker",
    "framework_callbacks",
    "validation",
    "deterministic",
    "torch_config",
    "tensorflow_config",
    "framework",
    "label_column",
    "checkpoint_frequency",
    "run_config",
    "resume_from",
    "report_all_ranks",
    "world_check",
)
#: The other fields, and those of `run_config` that no trial may have → why.
FIXED = {
    "kind": "a trial is a training",
    "limits": "the search's limits hold for all its trials",
    "failure_policy": "that of `train` holds for all trials",
    "hang_detection": "the trials of a search are not watched",
    "runtime_env": "all trials run in one job; run_config.worker_runtime_env may vary",
    "tracking": "the search's tracking holds for all its trials",
    "run_config.name": "each trial has a name of its own",
    "run_config.storage_path": "the trials are kept in the search's run directory",
}


def check(space: dict[str, Any]) -> None:
    """Raise ValueError if the space is empty, varies an unsupported field, or misspells or misuses a sampler."""
    if not space:
        raise ValueError("param_space: got {}; expected at least one entry to search over")
    for name in space:
        if name not in FIELDS and name not in FIXED:
            hint = did_you_mean(name, FIELDS)
            raise ValueError(f"param_space: got {shown(name)}; expected the fields {', '.join(FIELDS)} of train{hint}")
    samplers = list(_samplers(space, "param_space"))
    if not samplers:
        raise ValueError(f"param_space: got {shown(space)}, which varies nothing; expected {', '.join(SAMPLERS)}")
    for path, word, arguments in samplers:
        _check_sampler(path, word, arguments)
    _check_fixed("param_space", space)


def _check_fixed(field: str, space: Mapping[str, Any]) -> None:
    """Raise ValueError if the space names a field that is the same for all trials."""
    config = space.get("run_config")
    configs = extremes(*found) if isinstance(config, Mapping) and (found := sampler(config)) else [config]
    inside = [f"run_config.{name}" for value in configs if isinstance(value, Mapping) for name in value]
    for name in (*space, *inside):
        if name in FIXED:
            raise ValueError(
                f"{field}: got {name!r}, which cannot vary, since {FIXED[name]}; expected it outside the space"
            )


def check_mutations(field: str, mutations: Any, bounds: bool) -> None:
    """Raise ValueError unless `mutations`, an option of a scheduler, names fields as a space does. Its values are samplers
    or, as in Ray, lists of values; with `bounds` they are pairs."""
    if not isinstance(mutations, Mapping):
        raise ValueError(f"{field}: got {shown(mutations)}; expected a mapping like param_space")
    for name, value in mutations.items():
        if name not in FIELDS and name not in FIXED:
            raise ValueError(
                f"{field}: got {shown(name)}; expected fields of train, as in param_space:"
                f' {{"train_loop_config": {{{json.dumps(name)}: …}}}}{did_you_mean(name, FIELDS)}'
            )
        _check_mutation(f"{field}.{name}", value, bounds)
    for path, word, arguments in _samplers(mutations, field):
        _check_sampler(path, word, arguments)
        if word == "grid_search":
            raise ValueError(f"{path}: got a grid_search; expected a sampler, like choice")
    _check_fixed(field, lists_as_choices(mutations))


def _check_mutation(path: str, value: Any, bounds: bool) -> None:
    if isinstance(value, Mapping) and value and (bounds or sampler(value) is None):
        for name, item in value.items():
            _check_mutation(f"{path}.{name}", item, bounds)
    elif bounds:
        pair = isinstance(value, (list, tuple)) and len(value) == 2 and all(map(is_number, value))
        if not pair or not value[0] < value[1]:
            raise ValueError(f"{path}: got {shown(value)}; expected [lower, upper], two numbers")
    elif not value or not isinstance(value, (list, tuple, Mapping)):
        raise ValueError(f"{path}: got {shown(value)}; expected a list of values, {', '.join(MUTATING)}")


def _samplers(value: Any, path: str) -> Iterator[tuple[str, str, Any]]:
    if not isinstance(value, Mapping):
        return
    if (found := sampler(value)) is not None:
        yield path, *found
        return
    for name, item in value.items():
        inner = f"{path}.{name}"
        if isinstance(item, Mapping) and len(item) == 1:
            ((word, arguments),) = item.items()
            hint = did_you_mean(word, SAMPLERS, cutoff=0.75)
            if word not in SAMPLERS and hint and isinstance(arguments, (list, tuple)):
                raise ValueError(f"{inner}: got {shown(item)}; expected {', '.join(SAMPLERS)}{hint}")
        yield from _samplers(item, inner)


def _check_sampler(path: str, word: str, arguments: Any) -> None:
    names = SAMPLERS[word]
    if not isinstance(arguments, (list, tuple)) or (word in LISTS and not arguments):
        raise ValueError(f"{path}.{word}: got {shown(arguments)}; expected a list of {', '.join(names) or 'values'}")
    if word in LISTS:
        return
    given = f"{path}.{word}: got {shown(list(arguments))}"
    if len(arguments) != len(names) or not all(map(is_number, arguments)):
        raise ValueError(f"{given}; expected [{', '.join(names)}], all numbers")
    if "int" in word and not all(isinstance(number, int) for number in arguments):
        raise ValueError(f"{given}; expected whole numbers")
    if "int" in word and not all(-(2**63) <= number < 2**63 for number in arguments):
        raise ValueError(f"{given}; expected 64-bit whole numbers")
    of = dict(zip(names, arguments, strict=True))
    if "lower" in of and not of["lower"] < of["upper"]:
        raise ValueError(f"{given}; expected lower < upper")
    if "log" in word and of["lower"] <= 0:
        raise ValueError(f"{given}; expected a lower bound above 0")
    if "sd" in of and of["sd"] <= 0:
        raise ValueError(f"{given}; expected a standard deviation above 0")
    if "q" in of:
        _check_quantum(given, of)


def _check_quantum(given: str, of: dict[str, float]) -> None:
    """Ray Tune requires bounds that are multiples of `q`."""
    if of["q"] <= 0:
        raise ValueError(f"{given}; expected q above 0")
    for name in ("lower", "upper"):
        if name in of and not math.isclose(of[name] / of["q"], round(of[name] / of["q"])):
            raise ValueError(f"{given}; expected bounds that are multiples of q")
