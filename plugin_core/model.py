"""The base of all specs: frozen data whose errors are one clear sentence a field."""

from __future__ import annotations

import difflib
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from plugin_core.errors import SpecError


class Model(BaseModel):
    """A frozen model that refuses unknown fields and says what is wrong as one SpecError."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    def __init__(self, **data: Any):
        try:
            super().__init__(**data)
        except ValidationError as exc:
            # pydantic reports a union once a branch: one sentence a field is enough
            said = {_field(error): _sentences(error, type(self)) for error in reversed(exc.errors())}
            refused = SpecError("; ".join(sentence for field in reversed(said) for sentence in said[field]))
            refused.sentences = tuple(sentence for field in reversed(said) for sentence in said[field])
            raise refused from None


def _sentences(error: Any, cls: type[BaseModel]) -> list[str]:
    """One of pydantic's errors in our form: the field, what was given, what is accepted."""
    field, given, said = _field(error), error["input"], error["msg"].removeprefix("Value error, ")
    match error["type"]:
        case "extra_forbidden":
            names = sorted(cls.model_fields) if "." not in field else []
            close = difflib.get_close_matches(field, names, n=1)
            accepted = f"accepted are {', '.join(names)}" if names else "accepted is it without"
            hint = f" (did you mean {close[0]}?)" if close else ""
            return [f"{field}: unknown field, given {given!r}; {accepted}{hint}"]
        case "missing":
            return [f"{field}: missing; {cls.__name__} needs it"]
        case "value_error":
            inner = error["ctx"]["error"]
            if isinstance(inner, SpecError) and inner.sentences:
                return [f"{field}.{sentence}" for sentence in inner.sentences]
            if said.startswith("given "):
                return [f"{field}: {said}"]
            return [f"{field}: given {given!r}; {said}" if field else said]
        case _:
            return [f"{field}: given {given!r}; accepted is: {said[0].lower()}{said[1:]}"]


def _field(error: Any) -> str:
    return ".".join(part for part in map(str, error["loc"]) if not _is_union_branch(part))


def _is_union_branch(part: str) -> bool:
    """Whether pydantic put this into an error's location to say which branch of a union it tried."""
    return part in ("int", "str", "callable", "CheckpointRef") or part.startswith(("function-", "tuple[", "list[", "is-"))
