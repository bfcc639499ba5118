"""Remove credentials from URIs before they appear in a message or log."""

from __future__ import annotations

import re

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def shown_uri(uri: str) -> str:
    """An unchecked URI for a message: on one line, without user info and query values."""
    scheme, found, rest = CONTROL.sub("?", uri).partition("://")
    if not found:
        return re.sub(r"^([A-Za-z][A-Za-z0-9+.-]*:/?)[^/]*@", r"\1…@", scheme)
    rest, has_fragment, _ = rest.partition("#")
    place, _, query = rest.partition("?")
    authority = place.partition("/")[0]
    odd = ":" in authority and not re.fullmatch(r"(\[[0-9A-Fa-f:.]*\]|[^:]*):\d*", authority)
    if "@" in authority or (odd and "@" in rest):
        place = "…@" + rest.rpartition("@")[2].partition("?")[0]
    elif odd:
        place = "…" + place[len(authority) :]
    names = [pair.partition("=")[0] if "=" in pair else "…" for pair in query.split("&")] if query else []
    options = "?" + "&".join(f"{name}=…" for name in names) if names else ""
    return f"{scheme}://{place}{options}{'#…' if has_fragment else ''}"


def redacted(text: str) -> str:
    """Replace each URL in a text by its `shown_uri` form."""
    return re.sub(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"]*", lambda found: shown_uri(found.group()), text)
