"""`.step/request.json`: the engine's requests that a run serves. See `supervisor/generations.py`."""

from __future__ import annotations

from dataclasses import dataclass, replace

#: The most earlier requests that are kept.
MOST = 100


@dataclass(frozen=True)
class Request:
    """The last request for the run, and the request whose result was delivered; "" for none. `others`: earlier requests for
    it, the newest last. Two runs of an engine may share a run by its name, and a retry of either is not a new request."""

    asked: str = ""
    delivered: str = ""
    others: tuple[str, ...] = ()

    def is_new(self, request: str) -> bool:
        """Whether the run serves requests, and this is none of them: a person asks."""
        return self.asked != "" and request not in (self.asked, *self.others)

    def asked_by(self, request: str) -> Request:
        others = [each for each in (*self.others, self.asked) if each not in ("", request)]
        return replace(self, asked=request, others=tuple(others[-MOST:]))
