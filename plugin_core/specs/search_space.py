"""A search space as data: the name of a Ray Tune sampler → its arguments as a list.

    {"train_loop_config": {"lr": {"loguniform": [1e-4, 1e-1]}, "batch_size": {"choice": [32, 64]}, "epochs": 5}}

Everything else comes from the TrainSpec. Ray Tune's own objects (`tune.loguniform(1e-4, 1e-1)`) are accepted and converted
to this form.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

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
#: The fields whose values are not validated here.
FREE = ("train_loop_config", "params", "deepspeed_config")
LISTS = ("choice", "grid_search")


def as_data(space: Any, depth: int = 0) -> Any:
    """Convert Ray Tune's objects in the space to data. Raises ValueError for an object without such a form
    (`sample_from`), or if the space is cyclic."""
    if depth > MAX_DEPTH:
        raise ValueError(f"param_space: nested deeper than {MAX_DEPTH} levels, or cyclic")
    if isinstance(space, Mapping):
        return {name: as_data(value, depth + 1) for name, value in space.items()}
    if type(space).__module__.startswith("ray.tune.search.sample"):
        return _domain_as_data(space)
    return space


def lists_as_choices(mutations: Any) -> Any:
    """Mutations as a space: a list of values is a choice."""
    if isinstance(mutations, (list, tuple)):
        return {"choice": list(mutations)}
    if not isinstance(mutations, Mapping) or sampler(mutations) is not None:
        return mutations
    return {name: lists_as_choices(value) for name, value in mutations.items()}


def to_ray(space: Any) -> Any:
    """Convert the space to Ray Tune's objects."""
    if not isinstance(space, Mapping):
        return space
    if (found := sampler(space)) is None:
        return {name: to_ray(value) for name, value in space.items()}
    word, arguments = found
    if word == "grid_search":
        return {"grid_search": arguments}
    from ray import tune

    return tune.choice(arguments) if word == "choice" else getattr(tune, word)(*arguments)


def merged(base: Any, chosen: Any, space: Any = None) -> Any:
    """`base` updated recursively with a trial's values. A value that a sampler of the space chose, such as a whole
    dataset, replaces the one in `base`."""
    if not isinstance(base, Mapping) or not isinstance(chosen, Mapping):
        return chosen
    within = space if isinstance(space, Mapping) else {}
    if sampler(within) is not None:
        return chosen
    return {**base, **{name: merged(base.get(name), value, within.get(name)) for name, value in chosen.items()}}


def first(space: Any) -> Any:
    """A trial's values: the first extreme of each sampler."""
    if not isinstance(space, Mapping):
        return space
    if (found := sampler(space)) is not None:
        return extremes(*found)[0]
    return {name: first(value) for name, value in space.items()}


def ends(space: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (path, nested value) for the extremes of each sampler, in fields whose values are validated (unlike a loop's
    config)."""
    for field, value in space.items():
        if field not in FREE:
            for path, word, arguments in _paths(value, (field,)):
                for extreme in extremes(word, arguments):
                    yield ".".join(path), _nested(path, extreme)


def extremes(word: str, arguments: Any) -> list[Any]:
    if word in LISTS:
        return list(arguments)
    if word in ("randn", "qrandn"):
        return [float(arguments[0])]
    lower, upper = arguments[:2]
    if "int" in word:
        return [lower, upper if word.startswith("q") else upper - 1]
    return [float(lower), float(upper)]


def _nested(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    for name in reversed(path):
        value = {name: value}
    found: dict[str, Any] = value
    return found


def grid_size(space: Any) -> int:
    """The number of trials per sample: the product of the lengths of all grids."""
    size = 1
    for _, word, arguments in _paths(space, ()):
        size *= len(arguments) if word == "grid_search" else 1
    return size


def whole_grid(space: dict[str, Any]) -> Iterator[dict[str, Any]] | None:
    """All configs of a space whose only samplers are grids; None for any other space."""
    samplers = list(_paths(space, ()))
    if any(word != "grid_search" for _, word, _ in samplers):
        return None
    chosen = itertools.product(*(values for *_, values in samplers))
    return (_with(space, dict(zip((path for path, *_ in samplers), values, strict=True)), ()) for values in chosen)


def _with(space: Any, values: dict[tuple[str, ...], Any], path: tuple[str, ...]) -> Any:
    if path in values:
        return values[path]
    if not isinstance(space, Mapping):
        return space
    return {name: _with(value, values, (*path, name)) for name, value in space.items()}


def values_by_path(space: dict[str, Any], config: dict[str, Any]) -> dict[str, Any] | None:
    """A trial's value for each sampler of the space, by its path as Ray's searchers write it; None if it lacks one."""
    found = {}
    for path, *_ in _paths(space, ()):
        value: Any = config
        for name in path:
            if not isinstance(value, Mapping) or name not in value:
                return None
            value = value[name]
        found["/".join(path)] = value
    return found


def constants(space: Any) -> Any:
    """The space without its samplers."""
    if not isinstance(space, Mapping):
        return space
    return {
        name: constants(value)
        for name, value in space.items()
        if not (isinstance(value, Mapping) and sampler(value) is not None)
    }


def sampler(value: Mapping[str, Any]) -> tuple[str, Any] | None:
    """The sampler, if this is a dict with one entry named after one."""
    if len(value) != 1:
        return None
    ((word, arguments),) = value.items()
    return (word, arguments) if word in SAMPLERS else None


def _paths(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str, Any]]:
    """Yield (path, name, arguments) for the samplers in a space that is known to be valid."""
    if not isinstance(value, Mapping):
        return
    if (found := sampler(value)) is not None:
        yield path, *found
        return
    for name, item in value.items():
        yield from _paths(item, (*path, name))


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
