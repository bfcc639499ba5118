"""The types of fields that hold a user's function, or an object that a function makes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

from plugin_core.specs.fields import listed
from plugin_core.specs.function_arguments import given

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
