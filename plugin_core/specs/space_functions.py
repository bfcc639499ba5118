"""Functions as values of a search space: they are sent with the step, and a trial's config has their names.

{"preprocessor": {"choice": [scaled, normalised, None]}, "train_loop_per_worker": {"choice": ["a:b", loop]}}
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

from plugin_core.specs.fields import plain_except
from plugin_core.specs.search_space import FREE, lists_as_choices

#: The fields of a training that are or have functions, and the names under which functions stand in them. A test compares
#: them with the specs.
FIELDS = (
    "train_loop_per_worker",
    "preprocessor",
    "datasets",
    "data_config",
    "framework_callbacks",
    "validation",
    "run_config",
)
NAMES = frozenset({*FIELDS, "function", "fn", "callbacks"}) - {"datasets", "run_config"}
#: Data in these fields.
_DATA = ("kwargs", "fn_kwargs", "worker_runtime_env")
#: A scheduler's options that are spaces.
_SPACES = ("hyperparam_mutations",)


def functions(space: Mapping[str, Any], field: str) -> Iterator[tuple[str, Any]]:
    """Yield (path, function) for the functions in a space: callables, and names of functions."""
    for name in FIELDS:
        if name in space:
            yield from _functions(lists_as_choices(space[name]), f"{field}.{name}", name)


def _functions(value: Any, path: str, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key not in _DATA:
                yield from _functions(item, f"{path}.{key}", name if key in ("choice", "grid_search") else key)
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from _functions(item, f"{path}.{number}", name)
    elif callable(value) or (isinstance(value, str) and name in NAMES):
        yield path, value


def with_datasets_as_mappings(space: Mapping[str, Any]) -> dict[str, Any]:
    """The space, with `{"function": f}` in place of each dataset that is a bare callable."""
    return {name: _wrapped(value) if name == "datasets" else value for name, value in space.items()}


def with_functions(config: Any, of_name: Callable[[str], Any]) -> Any:
    """A trial's config, with each string replaced by what `of_name` returns for it."""
    if isinstance(config, dict):
        return {key: with_functions(item, of_name) for key, item in config.items()}
    if isinstance(config, list):
        return [with_functions(item, of_name) for item in config]
    return of_name(config) if isinstance(config, str) else config


def _wrapped(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: item if key in ("function", "kwargs") else _wrapped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_wrapped(item) for item in value]
    return {"function": value} if callable(value) else value


def _in_space(value: Any, path: tuple[str, ...]) -> bool:
    return callable(value) and path[0] not in FREE


def _in_options(value: Any, path: tuple[str, ...]) -> bool:
    return path[0] in _SPACES and len(path) > 1 and _in_space(value, path[1:])


def _named(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _named(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_named(item) for item in value]
    if not callable(value):
        return value
    from plugin_core.specs.functions import by_value_name

    return by_value_name(value)


_AsData = PlainSerializer(_named, return_type=dict[str, Any], when_used="json")
#: Plain data with functions where a training has functions; as JSON, with their names.
Space = Annotated[dict[str, Any], BeforeValidator(lambda value: plain_except(value, _in_space)), _AsData]
#: The options of a scheduler, of which some are spaces.
Options = Annotated[dict[str, Any], BeforeValidator(lambda value: plain_except(value, _in_options)), _AsData]
