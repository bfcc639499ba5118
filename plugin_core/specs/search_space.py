"""A search space as data: the name of a Ray Tune sampler → its arguments as a list.

    {"train_loop_config": {"lr": {"loguniform": [1e-4, 1e-1]}, "batch_size": {"choice": [32, 64]}, "epochs": 5}}

Everything else comes from the TrainSpec. Ray Tune's own objects (`tune.loguniform(1e-4, 1e-1)`) are accepted and converted
to this form.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from plugin_core.errors.shown import did_you_mean, shown
from plugin_core.specs.json_values import is_number

#: The same limit as for plain data (in `specs.fields`, a layer above).
MAX_DEPTH = 50

#: Ray Tune's samplers → their arguments. "choice" and "grid_search" take any list.
SAMPLERS: dict[str, tuple[str, ...]] = {
    "uniform": ("lower", "upper"),
    "quniform": ("lower", "upper", "q"),
    "loguniform": ("lower", "upper"),
    "qloguniform": ("lower", "upper", "q"),
    "randn": ("mean", "sd"),
    "qrandn": ("mean", "sd", "q"),
    "randint": ("lower", "upper"),
    "qrandint": ("lower", "upper", "q"),
    "lograndint": ("lower", "upper"),
    "qlograndint": ("lower", "upper", "q"),
    "choice": (),
    "grid_search": (),
}
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
    "torch_config",
)
#: The fields whose values are not validated here.
_FREE = ("train_loop_config", "params", "deepspeed_config")
_LISTS = ("choice", "grid_search")


def as_data(space: Any, depth: int = 0) -> Any:
    """Convert Ray Tune's objects in the space to data. Raises ValueError for one without such a form (`sample_from`), or if
    the space is cyclic."""
    if depth > MAX_DEPTH:
        raise ValueError(f"param_space: nested deeper than {MAX_DEPTH} levels, or cyclic")
    if isinstance(space, Mapping):
        return {name: as_data(value, depth + 1) for name, value in space.items()}
    if type(space).__module__.startswith("ray.tune.search.sample"):
        return _domain_as_data(space)
    return space


def check(space: dict[str, Any]) -> None:
    """Raise ValueError if the space is empty, varies an unsupported field, or misspells or misuses a sampler."""
    if not space:
        raise ValueError("param_space: got {}; expected at least one entry to search over")
    for name in space:
        if name not in FIELDS:
            hint = did_you_mean(name, FIELDS)
            raise ValueError(f"param_space: got {shown(name)}; expected the fields {', '.join(FIELDS)} of train{hint}")
    found = list(_samplers(space, "param_space"))
    if not found:
        raise ValueError(f"param_space: got {shown(space)}, which varies nothing; expected {', '.join(SAMPLERS)}")
    for path, word, arguments in found:
        _check_sampler(path, word, arguments)


def check_mutations(field: str, mutations: Any, bounds: bool) -> None:
    """Raise ValueError unless `mutations`, an option of a scheduler, names fields as a space does. Its values are samplers
    or, as in Ray, lists of values; with `bounds` they are pairs."""
    if not isinstance(mutations, Mapping):
        raise ValueError(f"{field}: got {shown(mutations)}; expected a mapping like param_space")
    for name, value in mutations.items():
        if name not in FIELDS:
            raise ValueError(
                f"{field}: got {shown(name)}; expected fields of train, as in param_space:"
                f' {{"train_loop_config": {{{json.dumps(name)}: …}}}}{did_you_mean(name, FIELDS)}'
            )
        _check_mutation(f"{field}.{name}", value, bounds)
    for path, word, arguments in _samplers(mutations, field):
        _check_sampler(path, word, arguments)
        if word == "grid_search":
            raise ValueError(f"{path}: got a grid_search; expected a sampler, like choice")


def _check_mutation(path: str, value: Any, bounds: bool) -> None:
    if isinstance(value, Mapping) and value and (bounds or _sampler(value) is None):
        for name, item in value.items():
            _check_mutation(f"{path}.{name}", item, bounds)
    elif bounds:
        pair = isinstance(value, (list, tuple)) and len(value) == 2 and all(map(is_number, value))
        if not pair or not value[0] < value[1]:
            raise ValueError(f"{path}: got {shown(value)}; expected [lower, upper], two numbers")
    elif not value or not isinstance(value, (list, tuple, Mapping)):
        raise ValueError(f"{path}: got {shown(value)}; expected a list of values, {', '.join(MUTATING)}")


def lists_as_choices(mutations: Any) -> Any:
    """Mutations as a space: a list of values is a choice."""
    if isinstance(mutations, (list, tuple)):
        return {"choice": list(mutations)}
    if not isinstance(mutations, Mapping) or _sampler(mutations) is not None:
        return mutations
    return {name: lists_as_choices(value) for name, value in mutations.items()}


def to_ray(space: Any) -> Any:
    """Convert the space to Ray Tune's objects."""
    if not isinstance(space, Mapping):
        return space
    if (sampler := _sampler(space)) is None:
        return {name: to_ray(value) for name, value in space.items()}
    word, arguments = sampler
    if word == "grid_search":
        return {"grid_search": arguments}
    from ray import tune

    return tune.choice(arguments) if word == "choice" else getattr(tune, word)(*arguments)


def merged(base: Any, chosen: Any) -> Any:
    """`base` updated recursively with a trial's values."""
    if isinstance(base, Mapping) and isinstance(chosen, Mapping):
        return {**base, **{name: merged(base.get(name), value) for name, value in chosen.items()}}
    return chosen


def ends(space: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (path, nested value) for the extremes of each sampler, in fields whose values are validated (unlike a loop's
    config)."""
    for field, value in space.items():
        if field in _FREE:
            continue
        for path, word, arguments in _samplers(value, field):
            for extreme in _extremes(word, arguments):
                yield path, _nested(path.split("."), extreme)


def _extremes(word: str, arguments: Any) -> list[Any]:
    if word in _LISTS:
        return list(arguments)
    if word in ("randn", "qrandn"):
        return [float(arguments[0])]
    lower, upper = arguments[:2]
    if "int" in word:
        return [lower, upper if word.startswith("q") else upper - 1]
    return [float(lower), float(upper)]


def _nested(path: list[str], value: Any) -> dict[str, Any]:
    for name in reversed(path):
        value = {name: value}
    found: dict[str, Any] = value
    return found


def grid_size(space: Any) -> int:
    """The number of trials per sample: the product of the lengths of all grids."""
    size = 1
    for _, word, arguments in _samplers(space, ""):
        size *= len(arguments) if word == "grid_search" else 1
    return size


def _sampler(value: Mapping[str, Any]) -> tuple[str, Any] | None:
    """The sampler, if this is a dict with one entry named after one."""
    if len(value) != 1:
        return None
    ((word, arguments),) = value.items()
    return (word, arguments) if word in SAMPLERS else None


def _samplers(value: Any, path: str) -> Iterator[tuple[str, str, Any]]:
    if not isinstance(value, Mapping):
        return
    if (sampler := _sampler(value)) is not None:
        yield path, *sampler
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
    if not isinstance(arguments, (list, tuple)) or (word in _LISTS and not arguments):
        raise ValueError(f"{path}.{word}: got {shown(arguments)}; expected a list of {', '.join(names) or 'values'}")
    if word in _LISTS:
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


def _domain_as_data(domain: Any) -> dict[str, Any]:
    from ray.tune.search.sample import Categorical, Float, Integer, LogUniform, Normal, Quantized, Uniform

    if isinstance(domain, Categorical):
        return {"choice": list(domain.categories)}
    sampler, q = domain.get_sampler(), []
    if isinstance(sampler, Quantized):
        sampler, q = sampler.get_sampler(), [sampler.q]
    prefix = "q" if q else ""
    if isinstance(sampler, Normal) and isinstance(domain, Float):
        return {f"{prefix}randn": [sampler.mean, sampler.sd, *q]}
    if isinstance(sampler, (Uniform, LogUniform)) and isinstance(domain, (Float, Integer)):
        word = "randint" if isinstance(domain, Integer) else "uniform"
        log = "log" if isinstance(sampler, LogUniform) else ""
        return {f"{prefix}{log}{word}": [domain.lower, domain.upper, *q]}
    raise ValueError(f"param_space: got {domain!r}; expected {', '.join(SAMPLERS)}")
