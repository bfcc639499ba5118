"""Names of runs, made from an engine's ids."""

from __future__ import annotations

import hashlib
import json
import re

#: The end of the name of a later generation's directory.
GENERATION = re.compile(r"\.g(\d+)$")


def run_name(*parts: str) -> str:
    """A run's name out of an engine's ids: safe for paths, equal for equal ids, long ones shortened with a hash."""
    given = [part for part in parts if part]
    joined = "--".join(given)
    safe = re.sub(r"[^A-Za-z0-9._=-]+", "_", joined).lstrip(".-")
    # a part that holds the separator, or looks like a generation's ending, could be mistaken for another name
    if safe == joined and len(safe) <= 96 and joined.split("--") == given and not GENERATION.search(joined):
        return safe
    return f"{safe[:80]}-{hashlib.sha256(json.dumps(given).encode()).hexdigest()[:10]}"
