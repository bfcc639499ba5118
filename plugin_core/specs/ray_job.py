"""The spec of arbitrary work on a Ray cluster, as a function or a command."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from plugin_core.errors import SpecError
from plugin_core.errors.shown import shown
from plugin_core.specs.fields import Amount, Name, Plain, readable
from plugin_core.specs.function_field import Function
from plugin_core.specs.results import StepResult
from plugin_core.specs.step import Bundle, StepSpec

#: Linux's limit for one argument of a program (MAX_ARG_STRLEN), and a bound on their number.
MAX_ARGUMENT, MAX_ARGUMENTS = 100_000, 10_000
#: Resources that have a field of their own.
_NAMED = {"CPU": "num_cpus", "GPU": "num_gpus"}


def _command(value: Any) -> Any:
    """Validate here, to report one error message instead of pydantic's two for a union."""
    parts = value if isinstance(value, (list, tuple)) else [value]
    if not parts or not all(isinstance(part, str) for part in parts):
        raise ValueError(f"got {shown(value)}; expected a program and its arguments, or a command line as text")
    if not parts[0].strip():
        raise ValueError(f"got {shown(value)}; expected a program")
    for part in parts:
        if len(readable(part).encode()) > MAX_ARGUMENT:
            raise ValueError(f"got an argument of {len(part):,} characters; expected at most {MAX_ARGUMENT:,} bytes")
    if len(parts) > MAX_ARGUMENTS:
        raise ValueError(f"got {len(parts):,} arguments; expected at most {MAX_ARGUMENTS:,}")
    return list(parts) if isinstance(value, tuple) else value


#: A program and its arguments, or a command line for the shell.
Command = Annotated[list[str] | str, BeforeValidator(_command)]


class RayJobSpec(StepSpec):
    """Any work on a Ray cluster: a function of yours, or a command.

    `function(**arguments)` runs in one process of the cluster, connected to Ray. What it returns must be plain JSON
    data and becomes the result's `value`. `command` runs there too, with `RAY_ADDRESS` set so that `ray.init()` finds
    the cluster; it must exit with 0. A list is a program and its arguments; text is a command line for the shell, so
    never put untrusted text in it.

    Both are restarted when their process is lost, so it must do no harm to run them again. With
    `plugin_core.loops.step` they can save their progress and continue from there.
    """

    kind: Literal["ray_job"] = "ray_job"
    function: Function | None = Field(None, description="your function; give this or `command`")
    arguments: Plain = Field({}, description="keyword arguments of `function`")
    command: Command | None = Field(
        None, description="a program and its arguments as a list, or a command line for the shell as text"
    )
    num_cpus: Amount = Field(0.0, description="CPUs of its process; 0, as Ray's drivers have, if its tasks do the work")
    num_gpus: Amount = Field(0.0, description="GPUs of its process")
    resources: dict[Name, Amount] = Field({}, description="other resources of its process: `memory` in bytes, or your own")
    task_resources: dict[Name, Amount] = Field(
        {"CPU": 1.0}, description="what the Ray tasks and actors that it starts need at once, at least; {}: it starts none"
    )

    def bundles(self) -> list[Bundle]:
        own = {"CPU": self.num_cpus, "GPU": self.num_gpus, **self.resources}
        return [(1, own), (1, dict(self.task_resources))] if self.task_resources else [(1, own)]

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.function is None) == (self.command is None):
            given = "neither" if self.function is None else "both"
            raise ValueError(f"function: got {given} of function and command; expected one of them")
        if self.arguments and self.command is not None:
            raise ValueError("arguments: got them with a command; expected them in the command, or a function")
        for name in _NAMED.keys() & self.resources:
            raise ValueError(f"resources: got {name!r}; expected it in {_NAMED[name]}")
        return self

    @model_validator(mode="after")
    def _takes_the_arguments(self) -> Self:
        if callable(self.function):
            try:
                inspect.signature(self.function).bind(**self.arguments)
            except TypeError as exc:
                names = ", ".join(inspect.signature(self.function).parameters) or "no arguments"
                raise ValueError(
                    f"arguments: got {', '.join(self.arguments) or 'none'} ({exc}); expected {names}"
                ) from None
            except ValueError:
                pass  # a builtin has no signature
        return self


def refuse_beside_a_call(decorator: str, given: Collection[str]) -> None:
    """Raise SpecError if a decorator is given a field that the call of the decorated function determines."""
    for name in ("spec", "function", "command", "arguments"):
        if name in given:
            raise SpecError(f"{name}: got it in {decorator}, which takes function and arguments from the call")


def call_arguments(
    function: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The `arguments` of a call `function(*args, **kwargs)`, by name; a step's result becomes its JSON. Raises
    SpecError if the function does not accept them."""
    signature = inspect.signature(function)
    for name, parameter in signature.parameters.items():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise SpecError(f"function: got the parameter {name!r}, which has no name in a call; expected ones that have")
    try:
        bound = signature.bind(*args, **(kwargs or {})).arguments
    except TypeError as exc:
        raise SpecError(f"arguments: got a call with {exc}; expected {', '.join(signature.parameters) or 'none'}") from None
    found: dict[str, Any] = {}
    for name, value in bound.items():
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            found |= value
        else:
            found[name] = value
    return {name: value.to_json() if isinstance(value, StepResult) else value for name, value in found.items()}
