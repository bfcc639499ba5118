"""Format any value for an error message, in one short line without secrets; suggest a name for a misspelt one."""

from __future__ import annotations

import difflib
import itertools
import re
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

from plugin_core.errors.redaction import redacted

#: Field names and mapping keys whose values never appear in a message.
_PRIVATE = re.compile(
    r"env_vars|env_files|runtime_env|header|authorization|token|secret|passw|credential|(api|access|private)_?key",
    re.IGNORECASE,
)


class _Hidden:
    def __repr__(self) -> str:
        return "…"


class _Short(reprlib.Repr):
    def repr_dict(self, given: Mapping[Any, Any], level: int) -> str:
        few = dict(itertools.islice(given.items(), self.maxdict + 1))
        return super().repr_dict({key: _Hidden() if is_private(key) else value for key, value in few.items()}, level)


_SHORT = _Short()
_SHORT.maxlevel = 4
_SHORT.maxdict = _SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxset = 10
_SHORT.maxstring = _SHORT.maxother = 300


def shown(value: Any, field: str = "") -> str:
    """`repr` with URLs redacted, truncated if it is long, deep or cyclic. Only the type's name if the value's `repr`
    fails (an integer of 5,000 digits) or the field may be secret."""
    if is_private(field):
        return f"a value of type {type(value).__name__}"
    try:
        return redacted(_SHORT.repr(value))
    except Exception:  # noqa: BLE001 - a user's __repr__ may raise anything
        return f"<{type(value).__name__}>"


def did_you_mean(name: str, names: Iterable[str], cutoff: float | None = None) -> str:
    """ " (did you mean X?)" for the most similar of `names`; "" if none is. `cutoff`: 1 for equal names only."""
    if cutoff is None:  # in a name of two or three letters, one typo is already a third or half of it
        cutoff = 0.65 if len(name) > 3 else 0.5
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=cutoff)
    return f" (did you mean {close[0]}?)" if close else ""


def is_private(name: Any) -> bool:
    """Whether a field or key of that name may hold a secret."""
    return isinstance(name, str) and _PRIVATE.search(name) is not None
