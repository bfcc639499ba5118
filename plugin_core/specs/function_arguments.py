"""Which arguments a user's function accepts: checked when a spec is made, and obeyed when the function is called."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from typing import Any, TypeVar

from pydantic import BeforeValidator

T = TypeVar("T")


def accepted(signature: inspect.Signature, arguments: Sequence[T]) -> Sequence[T]:
    """As many of these positional arguments as the function accepts: it may take fewer than it is offered."""
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return arguments
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return arguments[: sum(kind in positional for kind in kinds)]


def _signature(function: Any) -> inspect.Signature | None:
    """None if the parameters are unknown, as those of a function given by name."""
    if not callable(function):  # or `inspect` would format it, however deep it is
        return None
    try:
        # not that of a function that a decorator wraps: the decorator may add arguments
        return inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return None


def given(*names: str) -> BeforeValidator:
    """Refuses a function that needs more than these positional arguments; it may take fewer."""

    def check(value: Any) -> Any:
        if (signature := _signature(value)) is None:
            return value
        try:
            signature.bind(*accepted(signature, names))
        except TypeError:
            wanted = ", ".join(names) or "no arguments"
            raise ValueError(f"got {_called(value, signature)}; expected one that is called with {wanted}") from None
        return value

    return BeforeValidator(check)


def check_arguments(field: str, arguments: Collection[str], function: Any, *first: str) -> None:
    """Raise ValueError about `field` if a function cannot be called with these keyword arguments, after the positional
    ones in `first`."""
    if (signature := _signature(function)) is None:
        return
    try:
        signature.bind(*first, **dict.fromkeys(arguments))
    except TypeError as exc:
        wanted = f"the arguments of {_called(function, signature)}" + "".join(f", after {name}" for name in first)
        raise ValueError(f"{field}: got {', '.join(arguments) or 'none'}; expected {wanted} ({exc})") from None


def _called(function: Any, signature: inspect.Signature) -> str:
    return f"{getattr(function, '__qualname__', type(function).__name__)}({', '.join(signature.parameters)})"
