"""The parts of a spec: its functions, datasets and nested steps."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, get_args

from plugin_core.errors import SpecError
from plugin_core.specs import functions
from plugin_core.specs.common import USERS_FUNCTION, DatasetConfig
from plugin_core.specs.step import StepSpec


@functools.cache
def function_fields(spec_class: type[StepSpec]) -> tuple[str, ...]:
    """The fields of a spec that hold a user's function, those of type `Function`."""
    return tuple(
        name for name, field in spec_class.model_fields.items() if _is_function([*field.metadata, field.annotation])
    )


def _is_function(parts: Iterable[Any]) -> bool:
    return any(part is USERS_FUNCTION or _is_function(get_args(part)) for part in parts)


def spec_functions(spec: StepSpec) -> tuple[dict[str, Any], dict[str, str]]:
    """The spec's functions by field name: those by value, those by reference."""
    by_value: dict[str, Any] = {}
    references: dict[str, str] = {}

    def note(field: str, value: Any) -> None:
        if isinstance(value, str):
            if not functions.is_by_value(value):
                references[field] = value
        elif callable(value):
            by_value[field] = value

    for field in function_fields(type(spec)):
        note(field, getattr(spec, field))
    for field, dataset in _own_datasets(spec).items():
        note(f"{field}.function", dataset.function)
    for name, inner in _parts(spec).items():
        theirs = spec_functions(inner)
        for mine, its in zip((by_value, references), theirs, strict=True):
            mine.update({f"{name}.{field}": value for field, value in its.items()})
    return by_value, references


def spec_datasets(spec: StepSpec) -> dict[str, DatasetConfig]:
    """The spec's datasets by field name."""
    inner = {
        f"{name}.{field}": dataset for name, part in _parts(spec).items() for field, dataset in spec_datasets(part).items()
    }
    return {**_own_datasets(spec), **inner}


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
    part, _, rest = field.partition(".")
    inner = getattr(spec, part)
    return needed_rows(inner, rest, config) if isinstance(inner, StepSpec) else spec.needed_rows(config)


def too_few_rows(field: str, config: DatasetConfig, there: int, rows: int) -> SpecError:
    given = f"got {config.path or config.function!r}{' split' if config.split is not None else ''}"
    return SpecError(
        f"{field}: {given}, which {f'has {there} rows' if there else 'is empty'}; expected at least {rows},"
        " one for each worker"
        if rows > 1
        else f"{field}: {given}, which is empty; expected at least one row"
    )


def dataset_paths(config: DatasetConfig) -> list[str]:
    return config.path if isinstance(config.path, list) else [config.path or ""]
