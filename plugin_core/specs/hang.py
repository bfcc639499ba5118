"""How a training that stands still is noticed."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge
from pydantic import Field

from plugin_core.specs.base import Model
from plugin_core.specs.fields import Amount, Seconds


class HangDetection(Model):
    """A training hangs when it reports nothing for longer than its own reports let expect: `factor` times their median
    interval, three times the longest one, and `min_s` at least. Uploads of checkpoints and calls of
    `plugin_core.loops.progress()` count as progress. Not in a search's trials, nor in `execute()`."""

    action: Literal["off", "warn", "restart"] = Field(
        "warn",
        description="`warn`: tell the log, and keep the stacks of all ranks; `restart`: also restart from the checkpoint",
    )
    start_s: Seconds = Field(3600.0, description="the bound until the first two reports of a worker group")
    min_s: Seconds = Field(600.0, description="the least bound after them")
    factor: Annotated[Amount, Ge(1)] = Field(30.0, description="median intervals of reports; an evaluation may take many")
