"""The parts of a spec: its functions, datasets and nested steps."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any, get_args

from plugin_core.errors import SpecError
from plugin_core.specs import functions
from plugin_core.specs.base import Model
from plugin_core.specs.common import FORMAT_PACKAGES, DatasetConfig
from plugin_core.specs.extras import require
from plugin_core.specs.function_field import USERS_FUNCTION
from plugin_core.specs.step import StepSpec


@functools.cache
def _function_fields(model: type[Model]) -> frozenset[str]:
    """The fields of a model that hold a user's function, or a list of them."""
    return frozenset(
        name for name, field in model.model_fields.items() if _is_function([*field.metadata, field.annotation])
    )


def _is_function(parts: Iterable[Any]) -> bool:
    return any(part is USERS_FUNCTION or _is_function(get_args(part)) for part in parts)


def spec_functions(spec: StepSpec) -> tuple[dict[str, Any], dict[str, str]]:
    """The spec's functions by field name: those sent by value, and those sent by reference."""
    given = {field: value for field, value in all_functions(spec).items() if not is_name_of_value(value)}
    by_value = {field: value for field, value in given.items() if not isinstance(value, str)}
    return by_value, {field: value for field, value in given.items() if isinstance(value, str)}


def all_functions(spec: StepSpec) -> dict[str, Any]:
    """The spec's functions by field name: callables, references, and names of those that were sent by value."""
    return {field: value for field, value in _functions(spec, "") if value is not None}


def is_name_of_value(value: Any) -> bool:
    return isinstance(value, str) and functions.is_by_value(value)


def _functions(model: Model, prefix: str) -> Iterator[tuple[str, Any]]:
    """All functions of a model and of the models in it, with their dotted field names."""
    for name, value in model:
        if isinstance(value, Model):
            yield from _functions(value, f"{prefix}{name}.")
        elif name in _function_fields(type(model)):
            items = value if isinstance(value, list) else [value]
            names = [f"{prefix}{name}.{number}" for number in range(len(items))]
            yield from zip(names if items is value else [f"{prefix}{name}"], items, strict=True)
        elif isinstance(value, dict):
            for key, item in value.items():
                if isinstance(item, Model):
                    yield from _functions(item, f"{prefix}{name}.{key}.")
    if isinstance(model, StepSpec):
        yield from ((f"{prefix}{field}", value) for field, value in model.more_functions().items())


def spec_datasets(spec: StepSpec) -> dict[str, DatasetConfig]:
    """The spec's datasets by field name."""
    inner = {
        f"{name}.{field}": dataset for name, part in _parts(spec).items() for field, dataset in spec_datasets(part).items()
    }
    return {**_own_datasets(spec), **spec.more_datasets(), **inner}


def _parts(spec: StepSpec) -> dict[str, StepSpec]:
    """A spec's nested steps, by field name: the training of a search, the steps of a retraining."""
    return {name: value for name, value in spec if isinstance(value, StepSpec)}


def _own_datasets(spec: StepSpec) -> dict[str, DatasetConfig]:
    datasets = {f"datasets.{name}": config for name, config in getattr(spec, "datasets", {}).items()}
    if getattr(spec, "dataset", None) is not None:
        datasets["dataset"] = spec.dataset  # type: ignore[attr-defined]
    return datasets


def needed_columns(spec: StepSpec, field: str) -> dict[str, list[str]]:
    """The columns that a step or nested step needs from the dataset in `field`, by the spec fields that name them."""
    part, _, rest = field.partition(".")
    inner = getattr(spec, part)
    if not isinstance(inner, StepSpec):
        return spec.needed_columns(field)
    return {f"{part}.{name}": columns for name, columns in needed_columns(inner, rest).items()}


def needed_rows(spec: StepSpec, field: str, config: DatasetConfig) -> int:
    """The minimum number of rows that a step or nested step needs from the dataset in `field`."""
    return owner(spec, field).needed_rows(config)


def owner(spec: StepSpec, field: str) -> StepSpec:
    """The step, or nested step, whose own dataset is in `field`."""
    part, _, rest = field.partition(".")
    inner = getattr(spec, part)
    return owner(inner, rest) if isinstance(inner, StepSpec) else spec


def too_few_rows(field: str, config: DatasetConfig, there: int, rows: int) -> SpecError:
    given = f"got {config.path or config.function!r}{' split' if config.split is not None else ''}"
    return SpecError(
        f"{field}: {given}, which {f'has {there} rows' if there else 'is empty'}; expected at least {rows},"
        " one for each worker"
        if rows > 1
        else f"{field}: {given}, which is empty; expected at least one row"
    )


def check_format(field: str, config: DatasetConfig) -> None:
    """Raise SpecError about `field` if the package that reads the dataset's format is not installed here."""
    if config.path is not None and config.guessed_format in FORMAT_PACKAGES:
        require(field, config.guessed_format, *FORMAT_PACKAGES[config.guessed_format])


def dataset_paths(config: DatasetConfig) -> list[str]:
    return config.path if isinstance(config.path, list) else [config.path or ""]
