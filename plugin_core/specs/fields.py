"""The types of a spec's fields. They are strict: a value is accepted unchanged or rejected, never converted.

`True` is not a number, "5" is not 5, and numbers are finite. Data for a user's code (a loop's config) is plain JSON,
because the spec is stored and sent as JSON: anything JSON would change (a tuple, NaN, a non-string key) is rejected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, AllowInfNan, BeforeValidator, Field, Strict

from plugin_core.errors import SpecError
from plugin_core.errors.shown import shown

#: The most processes one step may start: more is a mistake, and each costs memory in the driver.
MAX_PROCESSES = 100_000
#: A timeout of more than 30 years is a mistake, and overflows operating system timers.
MAX_SECONDS = 1e9
#: The maximum depth and number of values of plain data.
MAX_DEPTH, MAX_VALUES = 50, 100_000
MAX_TEXT = 10_000
#: Python cannot format an integer of more than 4,300 digits, and a float cannot hold one of more bits than this.
MAX_BITS = 1024


def readable(text: str) -> str:
    """Raise ValueError for text that cannot be stored in a file, variable or JSON document."""
    if "\0" in text:
        raise ValueError(f"got {shown(text)}; expected text without NUL characters")
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError(f"got {shown(text)}; expected valid UTF-8 text")
    return text


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError(f"got {shown(text)}; expected a name")
    return text


def listed(value: Any) -> Any:
    """Reject sets, which have no order, and iterators, which can be read only once."""
    if value is None or isinstance(value, (list, tuple)):
        return value
    raise ValueError(f"got {shown(value)}; expected a list")


def _distinct(names: list[str]) -> list[str]:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"got {shown(name)} {names.count(name)} times; expected each name once")
    return names


def _one_or_pair(value: Any) -> Any:
    """Validate here, to report one error message instead of pydantic's two for a union."""
    parts = value if isinstance(value, (list, tuple)) else [value]
    whole = all(type(part) is int and 1 <= part <= MAX_PROCESSES for part in parts)
    if not whole or (isinstance(value, (list, tuple)) and (len(value) != 2 or value[0] > value[1])):
        given = tuple(value) if isinstance(value, list) else value
        raise ValueError(
            f"got {shown(given)}; expected a whole number from 1 to {MAX_PROCESSES:,}, or a pair [min, max] with"
            " 1 ≤ min ≤ max"
        )
    return tuple(value) if isinstance(value, list) else value


Flag = Annotated[bool, Strict()]
Count = Annotated[int, Strict(), Field(ge=1, le=2**31 - 1)]
#: A number of bytes, retries etc.
Whole = Annotated[int, Strict(), Field(ge=0, le=2**53)]
Seed = Annotated[int, Strict(), Field(ge=0, lt=2**32)]
#: How often something may fail; -1: no limit.
Tries = Annotated[int, Strict(), Field(ge=-1, le=2**31 - 1)]
#: A number of processes, or a (min, max) pair.
Processes = Annotated[int | tuple[int, int], BeforeValidator(_one_or_pair)]

Number = Annotated[float, Strict(), AllowInfNan(False)]
Share = Annotated[float, Strict(), AllowInfNan(False), Field(gt=0, lt=1)]
#: An amount of a resource: CPUs, GPUs, bytes of memory.
Amount = Annotated[float, Strict(), AllowInfNan(False), Field(ge=0, le=1e18)]
Seconds = Annotated[float, Strict(), AllowInfNan(False), Field(gt=0, le=MAX_SECONDS)]
#: Seconds; may be 0.
Grace = Annotated[float, Strict(), AllowInfNan(False), Field(ge=0, le=MAX_SECONDS)]

Text = Annotated[str, Strict(), Field(max_length=MAX_TEXT), AfterValidator(readable)]
#: The name of a column, a metric, a resource or a label.
Name = Annotated[str, Strict(), Field(max_length=1000), AfterValidator(readable), AfterValidator(_not_blank)]
Names = Annotated[list[Name], BeforeValidator(listed), AfterValidator(_distinct)]
Texts = Annotated[list[Text], BeforeValidator(listed)]


# ---- plain data


#: Whether a value at a path of plain data stays as it is, although it is no JSON.
Kept = Callable[[Any, tuple[str, ...]], bool]


def plain(value: Any) -> dict[str, Any]:
    """Validate a mapping that JSON preserves exactly. Raises SpecError naming the location within it."""
    return plain_except(value, lambda value, path: False)


def plain_except(value: Any, kept: Kept) -> dict[str, Any]:
    """`plain`, for a mapping in which some values are not JSON."""
    if not isinstance(value, Mapping):
        raise ValueError(f"got {shown(value)}; expected a mapping")
    left = [MAX_VALUES]
    found: dict[str, Any] = _plain(value, (), left, kept)
    return found


def check_size(value: Any, field: str) -> None:
    """Raise SpecError if data is cyclic, too deep or too large to traverse, whatever its values."""
    left = MAX_VALUES
    todo: list[tuple[Any, tuple[str, ...]]] = [(value, (field,))]
    while todo:
        part, path = todo.pop()
        left -= 1
        if left < 0:
            raise inside(path[:6], f"got more than {MAX_VALUES:,} values; expected fewer in a spec")
        if len(path) > MAX_DEPTH + 1:
            raise inside(path[:6], f"nested deeper than {MAX_DEPTH} levels, or cyclic; expected plain data")
        if isinstance(part, Mapping):
            todo += [(item, (*path, str(key)[:60] if isinstance(key, str) else "…")) for key, item in part.items()]
        elif isinstance(part, (list, tuple, set, frozenset)):
            todo += [(item, (*path, str(number))) for number, item in enumerate(part)]


def inside(path: Iterable[str], sentence: str) -> Exception:
    """The error for a location within a field's value."""
    where = ".".join(part if len(part) <= 60 else f"{part[:60]}…" for part in path)
    if not where:
        return ValueError(sentence)
    error = SpecError(f"{where}: {sentence}")
    error.sentences = (error.message,)
    return error


def _plain(value: Any, path: tuple[str, ...], left: list[int], kept: Kept) -> Any:
    left[0] -= 1
    if left[0] < 0:
        raise inside(path[:1], f"got more than {MAX_VALUES:,} values; expected fewer in a spec")
    if len(path) > MAX_DEPTH:
        raise inside(path[:1], f"nested deeper than {MAX_DEPTH} levels, or cyclic; expected plain JSON data")
    match value:
        case None | bool():
            return value
        case str():
            return _checked(readable, value, path)
        case int():
            if value.bit_length() > MAX_BITS:
                raise inside(path, f"got an integer of {value.bit_length():,} bits; expected at most {MAX_BITS:,}")
            return int(value)
        case float():
            if not math.isfinite(value):
                raise inside(path, f"got {value}, which JSON cannot represent; expected a finite number")
            return float(value)
        case list():
            return [_plain(item, (*path, str(number)), left, kept) for number, item in enumerate(value)]
        case Mapping():
            return {_key(key, path): _plain(item, (*path, str(key)), left, kept) for key, item in value.items()}
        case tuple():
            raise inside(path, f"got {shown(value)}, a tuple, which JSON would turn into a list; expected a list")
        case _ if kept(value, path):
            return value
        case _:
            raise inside(
                path, f"got {shown(value)} of type {type(value).__name__}; expected plain JSON data (text, numbers, lists)"
            )


def _key(key: Any, path: tuple[str, ...]) -> str:
    if not isinstance(key, str):
        raise inside(path, f"got the key {shown(key)} of type {type(key).__name__}; expected a string")
    return _checked(readable, key, path)


def _checked(check: Callable[[str], str], text: str, path: tuple[str, ...]) -> str:
    try:
        return str.__str__(check(text))  # also for a string enum
    except ValueError as exc:
        raise inside(path, str(exc)) from None


#: A mapping of plain JSON data, passed to a user's code unchanged.
Plain = Annotated[dict[str, Any], BeforeValidator(plain)]
