"""Checks of an operator's arguments that are possible when the DAG file is parsed."""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from plugin_core.engine import SpecError, did_you_mean

#: The packages whose stack frames lie between a DAG file and an operator.
_LIBRARIES = ("airflow", "airflow_provider", "plugin_core", "contextlib", "functools")
_MARKS = ("{{", "{%", "{#")
#: Arguments that are passed only between our own classes.
_INTERNAL = ("self", "fields", "kwargs", "python_callable", "op_args", "op_kwargs")


def check_arguments(operator: type, given: Mapping[str, Any]) -> None:
    """Raise SpecError for an argument that no class of the operator takes, and suggest the closest one. Airflow's own
    error suggests none."""
    ours, all_names = _arguments(operator)
    called = getattr(operator, "custom_operator_name", operator.__name__)
    for name in given.keys() - all_names:
        hint = did_you_mean(name, all_names)
        expected = f"another name{hint}" if hint else f"{', '.join(ours)}, or one that every operator takes"
        with noted_place(given.get("task_id")):
            raise SpecError(f"{name}: got an argument that {called} does not take; expected {expected}")


@contextmanager
def noted_place(task_id: str | None) -> Iterator[None]:
    """Add the task and its line in the DAG file to an error: Airflow shows only the last two calls, which are ours."""
    try:
        yield
    except SpecError as exc:
        here = next(
            (
                f", in {frame.f_code.co_filename}, line {line}"
                for frame, line in traceback.walk_stack(None)
                if frame.f_globals.get("__name__", "").partition(".")[0] not in _LIBRARIES
            ),
            "",
        )
        exc.add_note(f"in the task {task_id!r}{here}")
        raise


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
    """Whether a value contains neither a template nor another task's output, so that the task will get it as it is."""
    if isinstance(value, str):
        return not any(mark in value for mark in _MARKS)
    if isinstance(value, Mapping):
        return all(map(is_rendered, value.values()))
    if isinstance(value, (list, tuple, set)):
        return all(map(is_rendered, value))
    # an XComArg, or anything else that Airflow resolves when the task runs
    return isinstance(value, type) or inspect.isroutine(value) or not hasattr(value, "resolve")
