"""Masks secrets in what this process, driver or worker, prints and records: the values that were handed over to it."""

from __future__ import annotations

import logging
from collections.abc import Iterable

_values: list[str] = []


def mask(values: Iterable[str]) -> None:
    """Mask these values from now on, longest first, instead of those before."""
    _values[:] = values


def masked(text: str) -> str:
    """`text` with `…` in place of each value."""
    for value in _values:
        text = text.replace(value, "…")
    return text


class Masked(logging.Formatter):
    """For the driver's log, whose lines and tracebacks may come from clients that print their arguments."""

    def format(self, record: logging.LogRecord) -> str:
        return masked(super().format(record))
