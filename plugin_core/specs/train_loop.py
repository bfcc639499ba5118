"""A train loop is a function. Other things that Ray itself can run are refused; the error says what to give instead.

They are recognised by name, without importing Ray.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BeforeValidator

from plugin_core.specs.function_arguments import given
from plugin_core.specs.function_field import Function

_A_LOOP = "expected a function that calls ray.train.report(metrics)"
RUNS_NOTHING = f"got a generator or coroutine, which runs nothing when it is called; {_A_LOOP}"
FITS = "which fits a trainer or tuner of its own; expected the function that it trains with"


def problem(value: Any) -> str | None:
    """Why Ray's workers cannot run the value, as a sentence; None if they can."""
    if inspect.isclass(value):
        return f"got the class {value.__name__}; {_A_LOOP}"
    if not callable(value):
        return f"got a {type(value).__name__}; expected the function that it trains with" if _is_rays(type(value)) else None
    if any(
        check(value) for check in (inspect.isgeneratorfunction, inspect.isasyncgenfunction, inspect.iscoroutinefunction)
    ):
        return RUNS_NOTHING
    name = getattr(value, "__name__", type(value).__name__)
    if _fits(value):
        return f"got {name}, {FITS}"
    if _is_rays(value) and getattr(value, "__qualname__", "").startswith("with_parameters."):
        return (
            f"got {name} with ray.tune.with_parameters, whose values stay in this process; expected {name} itself, and the"
            " values in train_loop_config"
        )
    if hasattr(value, "_resources"):
        return (
            f"got {name} with ray.tune.with_resources; expected {name} itself, and the resources in"
            " scaling_config.resources_per_worker"
        )
    return None


def _fits(loop: Callable[..., Any]) -> bool:
    """Whether the function's own code names one of Ray's trainers or tuners, and `fit`."""
    found = inspect.unwrap(loop)
    names = getattr(getattr(found, "__code__", None), "co_names", ())
    scope = getattr(found, "__globals__", {})
    return "fit" in names and any(_trains(scope.get(name), names) for name in names)


def _trains(value: Any, names: tuple[str, ...]) -> bool:
    if inspect.ismodule(value):
        return value.__name__ == "ray.tune" and "Tuner" in names
    return inspect.isclass(value) and _is_rays(value) and value.__name__.endswith(("Trainer", "Tuner"))


def _is_rays(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] == "ray"


def _checked(value: Any) -> Any:
    if (why := problem(value)) is not None:
        raise ValueError(why)
    return value


TrainLoop = Annotated[Function, given("config"), BeforeValidator(_checked)]
