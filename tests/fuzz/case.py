"""One try, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


class Refused(Exception):
    """The product said no, in its own words."""


@dataclass(frozen=True)
class Case:
    """`run` returns where the input is accepted, raises Refused where it is refused; anything else is foreign.

    `wrong`: whether it has to be refused; otherwise `reason` says why it is accepted. `named`: words, one of
    which a refusal must contain, such as the field's name.
    """

    way: str
    name: str
    run: Callable[[], None]
    wrong: bool
    named: tuple[str, ...] = ()
    reason: str = ""
    #: run once before the first of its way, so that no case pays for imports; default: the case itself
    warm: Callable[[], None] | None = None


def verdict(case: Case, outcome: str, text: str) -> str:
    """What is wrong with an outcome ("accepted", "refused", "foreign" or "hang"); "" where nothing is."""
    if outcome in ("foreign", "hang"):
        return f"{outcome}: {text}"
    if outcome == "accepted":
        return "a wrong input is accepted" if case.wrong else ""
    if not case.wrong:
        return f"a right input is refused: {text}"
    if "\n" in text.strip():
        return f"not one sentence: {text}"
    if case.named and not any(word in text for word in case.named):
        return f"the field is not named: {text}"
    return ""
