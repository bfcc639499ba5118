"""The types of fields that hold a user's function, or an object that a function makes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

from plugin_core.specs.fields import listed

REFERENCE = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")
_BY_VALUE = re.compile(r"^value:.+#[0-9a-f]+$")


#: Marks fields that hold a user's function, which is sent with the step.
USERS_FUNCTION = "a user's function"


def _check_function(value: Any) -> Any:
    if callable(value) or (isinstance(value, str) and (REFERENCE.match(value) or _BY_VALUE.match(value))):
        return value
    raise ValueError("expected a callable or 'package.module:function'")


def _function_to_json(value: Any) -> str:
    if isinstance(value, str):
        return value
    from plugin_core.specs.functions import by_value_name

    return by_value_name(value)


#: A function: "package.module:function" is sent by reference, a callable by value.
Function = Annotated[
    str | Callable[..., Any],
    USERS_FUNCTION,
    BeforeValidator(_check_function),
    PlainSerializer(_function_to_json, return_type=str, when_used="json"),
]


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
        parameters = signature.parameters.values()
        takes = sum(each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in parameters)
        if any(each.kind is each.VAR_POSITIONAL for each in parameters):
            takes = len(names)
        try:
            signature.bind(*names[:takes])
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


class Made:
    """Stands in for a function that would make an object that already exists."""

    def __init__(self, value: Any):
        self.value = value
        # named, pickled and digested as if it were the user's function: by its code and what it holds
        self.__module__, self.__qualname__ = type(value).__module__, type(value).__qualname__
        self.made_by, self.holds = type(value), getattr(value, "__dict__", None)

    def __call__(self) -> Any:
        return self.value


def _maker(value: Any) -> Any:
    """Recognises a callback by its methods, without importing Ray."""
    is_object = not (isinstance(value, str) or inspect.isclass(value) or callable(value))
    return Made(value) if is_object and hasattr(value, "after_report") else value


#: A `ray.train.UserCallback`, its class, a function without arguments that returns one, or the name of either.
Callback = Annotated[Function, given(), BeforeValidator(_maker)]
#: A function without arguments that returns an object.
Maker = Annotated[Function, given()]
Makers = Annotated[list[Maker], BeforeValidator(listed)]
Callbacks = Annotated[list[Callback], BeforeValidator(listed)]
