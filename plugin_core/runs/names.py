"""Run names derived from an engine's ids."""

from __future__ import annotations

import hashlib
import json
import re

#: The suffix of a later generation's directory.
GENERATION = re.compile(r"\.g(\d+)$")


def run_name(*parts: str) -> str:
    """A deterministic, path-safe run name from an engine's ids; long names are shortened with a hash."""
    given = [part for part in parts if part]
    joined = "--".join(given)
    safe = re.sub(r"[^A-Za-z0-9._=-]+", "_", joined).lstrip(".-")
    # a part that contains the separator or looks like a generation suffix is ambiguous
    if safe == joined and len(safe) <= 96 and joined.split("--") == given and not GENERATION.search(joined):
        return safe
    return f"{safe[:80]}-{hashlib.sha256(json.dumps(given).encode()).hexdigest()[:10]}"
