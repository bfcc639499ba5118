"""Parse our own files from storage: each one matches its type or is damaged.

A file may be torn, or written by a later version or by anybody. Its content is validated here once, so that no other code
has to.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NotRequired, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from plugin_core.errors import StorageError

T = TypeVar("T")


class Record(TypedDict):
    """`.step/spec.json` (see `spec_record`). A child run's has no code of its own."""

    schema: int
    kind: str
    spec: dict[str, Any]
    payload: bool
    code: NotRequired[str]
    python: NotRequired[str]
    sources: NotRequired[bool]

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]


class Line(TypedDict, total=False):
    """A journal line: a report (in a search also the number of `trials`, and which report `of_trial` it is, in its `run`)
    or a phase.
    A phase may say how many `rows` are predicted, how many workers started on how many hosts, or why workers restart: which
    failure of how many allowed, and what they resume `from`.
    """

    attempt: int
    time: float
    phase: str
    report: int
    index: int
    metrics: dict[str, Any]
    checkpoint: str | None
    ranks: list[Any]
    trials: int
    of_trial: Any
    rows: int
    workers: int
    hosts: int
    why: str
    failure: int
    most: int

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]


#: Phases of one checkpoint.
_OF_A_CHECKPOINT = frozenset({"validated", "stored", "resuming"})

#: Any JSON object.
Object = dict[str, Any]


def parse(kind: type[T], data: bytes, what: str) -> T:
    """Parse a file's content, ignoring fields that a later version added. Raises StorageError if it is damaged; `what`
    names the file."""
    try:
        found: T = _adapter(kind).validate_json(data, strict=True)  # type: ignore[arg-type]
    except (ValidationError, RecursionError) as exc:
        raise StorageError(f"{what} is damaged: {_why(exc)}") from None
    return found


def parse_line(data: bytes) -> dict[str, Any] | None:
    """Parse a journal line; None if it is damaged."""
    try:
        entry: dict[str, Any] = _adapter(Line).validate_json(data, strict=True)
    except (ValidationError, RecursionError):
        return None
    name = entry.get("checkpoint")
    if name is not None and ("/" in name or name in ("", ".", "..")):
        return None  # must be the name of a folder in the run directory
    if "report" in entry:
        return {"time": 0.0, "metrics": {}, "checkpoint": None, **entry}
    if entry.get("phase") in _OF_A_CHECKPOINT:
        return {"time": 0.0, "metrics": {}, "index": 0, "status": "", **entry} if name is not None else None
    return entry if "phase" in entry else None


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _why(exc: ValidationError | RecursionError) -> str:
    if isinstance(exc, RecursionError):
        return "it is too deeply nested"
    error = exc.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part)[:60] for part in error["loc"])
    text = error["msg"][:1].lower() + error["msg"][1:200]
    return f"{place}: {text}" if place else text


def index_of(entry: Mapping[str, Any]) -> int:
    """The report's index in an uninterrupted run (see `journal_callback`); in older journals its number."""
    return int(entry["index"] if "index" in entry else entry["report"])
