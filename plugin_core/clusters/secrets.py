"""The variables and files that are handed over to a job, and the values to mask in its output."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Collection
from dataclasses import dataclass, field

from plugin_core.clusters import env_files

#: A job's variables for the name of its hand-over, and for the user's own worker hook.
VARIABLE, USERS_HOOK = "RAYTRAIN_HANDOVER", "RAYTRAIN_WORKER_HOOK"


#: Seconds that Ray keeps an unrenewed hand-over (its default for Jobs API uploads), and seconds between renewals.
KEPT_S, RENEW_S = 600, 240.0


#: Shorter values are too weak to be secrets, and masking them would garble any text.
_MASKED_FROM = 6


#: Comes first because Ray shows the first bytes of a package that it cannot store.
_HEADER = b"raytrain hand-over 1\n"


@dataclass(frozen=True)
class Secrets:
    """Environment variables, and files keyed by the variable that will hold their path."""

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
        """The strings to mask, longest first: the variables' values, whole and by line, and each line and assigned value in
        the files."""
        lines = [line for content in self.env_files.values() for line in content.splitlines()]
        parts = [part for line in lines for part in (line, line.partition("=")[2], line.partition(":")[2])]
        parts += [part for value in self.env_vars.values() for part in (value, *value.splitlines())]
        values = {value.strip(" \t'\",") for value in parts}
        return sorted((value for value in values if len(value) >= _MASKED_FROM), key=len, reverse=True)

    def install(self) -> None:
        """Set the variables in this process, and create the files."""
        os.environ.update(self.env_vars)
        env_files.install(self.env_files)
