"""The base class of all specs: frozen data with one error sentence per field."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, core_schema

from plugin_core.errors import SpecError
from plugin_core.errors.shown import did_you_mean, shown

#: What Python raises for data that is too large or too deep.
_TOO_MUCH = (RecursionError, OverflowError, MemoryError)


def _with_text_keys(value: Any) -> Any:
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"got the key {shown(key)}; expected a field name")
    return value


class Model(BaseModel):
    """A frozen model that rejects unknown fields and, however it is created, reports all errors as one SpecError."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    def __init__(self, **data: Any):
        refusing(type(self), super().__init__, **data)

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        made: Self = refusing(cls, super().model_validate, obj, **options)
        return made

    @classmethod
    def model_validate_json(cls, json_data: str | bytes | bytearray, **options: Any) -> Self:
        made: Self = refusing(cls, super().model_validate_json, json_data, **options)
        return made

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy; updated fields are validated. Raises SpecError."""
        copied = super().model_copy(deep=deep)
        given = {name: getattr(copied, name) for name in copied.model_fields_set}
        return type(self)(**{**given, **update}) if update else copied

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        # pydantic passes a dict to `__init__` as keyword arguments, which must be strings
        return core_schema.no_info_before_validator_function(_with_text_keys, handler(source))


def refusing(cls: type[BaseModel], make: Callable[..., Any], *args: Any, **data: Any) -> Any:
    """Call `make`; raises SpecError if the data is not a valid `cls`."""
    try:
        return make(*args, **data)
    except ValidationError as exc:
        raise refused(exc, cls) from None
    except _TOO_MUCH as exc:
        raise SpecError(f"{cls.__name__}: too large or too deeply nested ({type(exc).__name__})") from None


def refused(exc: ValidationError, cls: type[BaseModel]) -> SpecError:
    """Convert a pydantic error to a SpecError."""
    # pydantic reports an error per union branch: one sentence per field is enough
    said = {_field(error): _sentences(error, cls) for error in reversed(exc.errors(include_url=False))}
    error = SpecError("; ".join(sentence for field in reversed(said) for sentence in said[field]))
    error.sentences = tuple(sentence for field in reversed(said) for sentence in said[field])
    return error


#: A sentence about a field: its name comes first.
_NAMED = re.compile(r"([a-z]\w*)(\.\w+)*: ")


def _sentences(error: Any, cls: type[BaseModel]) -> list[str]:
    """A pydantic error in our format, "field: got X; expected Y"."""
    field, said = _field(error), error["msg"].removeprefix("Value error, ")
    given = shown(error["input"], field)
    match error["type"]:
        case "extra_forbidden":
            names = sorted(cls.model_fields) if "." not in field else []
            accepted = f"expected {', '.join(names)}" if names else "expected no fields here"
            if hint := did_you_mean(field, names):  # with it nobody needs the list
                accepted = f"expected a field of {cls.__name__}{hint}"
            return [f"{field}: unknown field, got {given}; {accepted}"]
        case "union_tag_invalid":
            return [f"{field}.type: got {shown(error['ctx']['tag'])}; expected {error['ctx']['expected_tags']}"]
        case "missing":
            return [f"{field}: missing; {cls.__name__} needs it"]
        case "value_error":
            inner = error["ctx"]["error"]
            if isinstance(inner, SpecError) and inner.sentences:
                return [f"{field}.{sentence}" if field else sentence for sentence in inner.sentences]
            if said.startswith("got ") and field:
                return [f"{field}: {said}"]
            named = _NAMED.match(said)
            if named and field and named[1] != field.rpartition(".")[2]:  # of a field inside it
                return [f"{field}.{said}"]
            return [f"{field}: got {given}; {said}" if field else said]
        case _:
            wanted = said.removeprefix("Input should be ")
            if wanted.startswith(("greater", "less")):
                wanted = f"a value {wanted}"
            return [f"{field}: got {given}; expected {wanted[0].lower()}{wanted[1:]}"]


def _field(error: Any) -> str:
    return ".".join(part for part in map(_part, error["loc"]) if not _is_union_branch(part))


def _part(part: str | int) -> str:
    text = str(part)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _is_union_branch(part: str) -> bool:
    """Whether this part of an error's location is pydantic's name for a union branch."""
    return part in ("int", "str", "callable", "CheckpointRef") or part.startswith(("function-", "tuple[", "list[", "is-"))
