"""TODO"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Collection
from dataclasses import dataclass, field

from plugin_core.clusters import env_files

#: The variables of a job that name its hand-over, and a worker hook of the user's own.
VARIABLE, USERS_HOOK = "RAYTRAIN_HANDOVER", "RAYTRAIN_WORKER_HOOK"


#: Seconds that Ray keeps a hand-over which nobody renews (its default for what the Jobs API takes), and between renewals.
KEPT_S, RENEW_S = 600, 240.0


#: Shorter values are no secrets worth the name, and masking them would garble any text.
_MASKED_FROM = 6


#: Ray shows the first bytes of a package that it cannot store.
_HEADER = b"raytrain hand-over 1\n"


@dataclass(frozen=True)
class Secrets:
    """Variables, and files by the variable that is to name them."""

    env_vars: dict[str, str] = field(default_factory=dict, repr=False)
    env_files: dict[str, str] = field(default_factory=dict, repr=False)

    def without(self, names: Collection[str]) -> Secrets:
        given = (self.env_vars, self.env_files)
        return Secrets(*({name: value for name, value in each.items() if name not in names} for each in given))

    def __bool__(self) -> bool:
        return bool(self.env_vars or self.env_files)

    def pack(self) -> bytes:
        return _HEADER + json.dumps([self.env_vars, self.env_files]).encode()

    @classmethod
    def unpack(cls, data: bytes) -> Secrets:
        return cls(*json.loads(data.removeprefix(_HEADER)))

    @functools.cached_property
    def masks(self) -> list[str]:
        """What to mask in a text, the longest first: the variables' values, and of the files each line and what it sets."""
        lines = [line for content in self.env_files.values() for line in content.splitlines()]
        parts = [part for line in lines for part in (line, line.partition("=")[2], line.partition(":")[2])]
        values = {value.strip(" \t'\",") for value in [*self.env_vars.values(), *parts]}
        return sorted((value for value in values if len(value) >= _MASKED_FROM), key=len, reverse=True)

    def install(self) -> None:
        """Set the variables of this process, and open the files that some of them name."""
        os.environ.update(self.env_vars)
        env_files.install(self.env_files)
