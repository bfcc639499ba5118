"""Validate a cluster's options like the fields of a spec."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Annotated, Any, get_type_hints

from pydantic import AfterValidator, Field, Strict, TypeAdapter, ValidationError

from plugin_core.errors import SpecError
from plugin_core.errors.shown import shown
from plugin_core.specs.fields import MAX_PROCESSES, inside, readable
from plugin_core.specs.runtime_env import variables


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("expected text without control characters")
    return text


def _files(value: Any) -> dict[str, str]:
    return variables(value, limit=None)


def _headers(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError("expected a mapping of names to strings")
    for name, text in value.items():
        if not isinstance(name, str) or not name.isascii() or not name.replace("-", "").replace("_", "").isalnum():
            raise ValueError("expected names of letters, digits and '-'")
        if not isinstance(text, str) or not text.isprintable():
            raise inside((name,), "expected text without control characters")
    return value


#: Text that goes into a header, a command or a process table.
Word = Annotated[str, Strict(), Field(min_length=1, max_length=4096), AfterValidator(readable), AfterValidator(_printable)]
Token = Annotated[str, Strict(), Field(max_length=65_536), AfterValidator(_printable)]
Headers = Annotated[dict[str, str], AfterValidator(_headers)]
Files = Annotated[dict[str, str], AfterValidator(_files)]
#: A number of CPUs or GPUs; may be 0.
Units = Annotated[int, Strict(), Field(ge=0, le=MAX_PROCESSES)]
#: In Kubernetes' notation: 4Gi, 500M.
Memory = Annotated[str, Strict(), Field(pattern=r"^[1-9][0-9]*(\.[0-9]+)?([EPTGMk]i?|Ki|m)?$", max_length=20)]


def check_options(cluster: Any) -> None:
    """Raise SpecError if a dataclass field does not match its type. Values of fields with `repr=False` are never shown."""
    types = _types(type(cluster))  # type: ignore[arg-type]
    for each in fields(cluster):
        if not each.init:
            continue
        try:
            types[each.name].validate_python(getattr(cluster, each.name))
        except ValidationError as exc:
            raise SpecError(f"{each.name}{'.' if _has_place(exc) else ': '}{_said(exc, each.repr)}") from None
        except RecursionError:
            raise SpecError(f"{each.name}: too deeply nested") from None


@cache
def _types(cls: type[Any]) -> dict[str, TypeAdapter[Any]]:
    hints = get_type_hints(cls, include_extras=True)
    return {each.name: TypeAdapter(hints[each.name]) for each in fields(cls) if each.init}


def _has_place(exc: ValidationError) -> bool:
    inner = exc.errors(include_url=False)[0].get("ctx", {}).get("error")
    return isinstance(inner, SpecError) and bool(inner.sentences)


def _said(exc: ValidationError, may_be_shown: bool) -> str:
    error = exc.errors(include_url=False)[0]
    inner = error.get("ctx", {}).get("error")
    if isinstance(inner, SpecError):
        return inner.sentences[0] if inner.sentences else inner.message
    said = error["msg"].removeprefix("Value error, ")
    if said.startswith("got "):
        return said
    expected = said.removeprefix("Input should be ").removeprefix("expected ")
    given = shown(error["input"]) if may_be_shown else f"a value of type {type(error['input']).__name__}"
    return f"got {given}; expected {expected[0].lower()}{expected[1:]}"
