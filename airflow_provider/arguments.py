"""What can be told about an operator's arguments when the DAG file is parsed."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from plugin_core.engine import SpecError, did_you_mean

_MARKS = ("{{", "{%", "{#")
#: Between our own classes.
_INTERNAL = ("self", "fields", "kwargs", "python_callable", "op_args", "op_kwargs")


def check_arguments(operator: type, names: Iterable[str]) -> None:
    """Raise SpecError for an argument that no class of the operator takes, with the closest one. Airflow's own error has no
    suggestion."""
    ours, all_names = _arguments(operator)
    called = getattr(operator, "custom_operator_name", operator.__name__)
    for name in names:
        if name not in all_names:
            raise SpecError(
                f"{name}: got an argument that {called} does not take; expected {', '.join(ours)}, or one that"
                f" every operator takes{did_you_mean(name, all_names)}"
            )


@functools.cache
def _arguments(operator: type) -> tuple[tuple[str, ...], frozenset[str]]:
    """The arguments that this package's classes declare, and those of all classes of the operator."""
    ours: dict[str, None] = {}
    others: set[str] = set()
    for cls in operator.__mro__:
        if "__init__" not in vars(cls) or cls is object:
            continue
        names = dict.fromkeys(inspect.signature(cls.__init__).parameters)  # type: ignore[misc]
        if cls.__module__.startswith("airflow_provider."):
            ours |= names
        others |= names.keys()
    own = tuple(name for name in ours if name not in _INTERNAL)
    return own, frozenset(others)


def is_rendered(value: Any) -> bool:
    """Whether a value holds neither a template nor another task's output, so that it is what the task will get."""
    if isinstance(value, str):
        return not any(mark in value for mark in _MARKS)
    if isinstance(value, Mapping):
        return all(map(is_rendered, value.values()))
    if isinstance(value, (list, tuple, set)):
        return all(map(is_rendered, value))
    # an XComArg, and all else that Airflow resolves when the task runs
    return isinstance(value, type) or inspect.isroutine(value) or not hasattr(value, "resolve")
